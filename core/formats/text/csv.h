// Records of CSV (RFC 4180), for tables of texts and of numbers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ditto::formats {

// Without its byte order mark. Throws Error(data) for UTF-16 ("Unicode text" of Excel), which would be a riddle about
// columns.
std::string_view as_utf8(std::string_view text, std::string_view where);

// One record after another. Quoted fields may hold separators, line ends, and "" for a quote. The first of `separators`
// that the first line has parts fields; lines end with LF or CR LF, or with CR alone where the first line does.
class CsvRecords {
 public:
  // `text` must stay.
  CsvRecords(std::string_view text, std::string_view separators, std::size_t most_fields);

  bool next();  // false: there is none

  std::vector<std::string> fields;
  std::size_t line = 0;  // where the record begins; 1 is the first
  std::string damage;    // empty: it is whole

 private:
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool field();
  bool quoted(std::string& value);

  std::string_view text_;
  std::size_t most_fields_;
  char separator_, line_end_;
  std::size_t at_ = 0, next_line_ = 1;
};

}  // namespace ditto::formats
