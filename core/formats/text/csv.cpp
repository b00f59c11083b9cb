#include "core/formats/text/csv.h"

#include <algorithm>

#include <ditto/error.h>

#include "core/formats/limits.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

// What ends lines: CR alone in files of old Macs and of programs that still write so, where the first line has it.
// Inside of quotes it ends none.
char line_end_of(std::string_view text) {
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (is_quoted) continue;
    if (text[i] == '\n') break;
    if (text[i] == '\r') return i + 1 < text.size() && text[i + 1] == '\n' ? '\n' : '\r';
  }
  return '\n';
}

char separator_of(std::string_view text, std::string_view separators, char line_end) {
  text.remove_prefix(std::min(text.find_first_not_of(" \r\n"), text.size()));  // empty lines before it
  const auto line = text.substr(0, text.find(line_end));
  for (const char c : separators)
    if (line.find(c) != std::string_view::npos) return c;
  return ',';
}

}  // namespace

std::string_view as_utf8(std::string_view text, std::string_view where) {
  text = without_mark(text);
  const auto first = text.substr(0, 64);
  if (first.starts_with("\xFF\xFE") || first.starts_with("\xFE\xFF") || first.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::data, where, "is UTF-16 or another encoding with NUL bytes; UTF-8 is expected",
                "save it as UTF-8 (in Excel: \"CSV UTF-8\")");
  return text;
}

CsvRecords::CsvRecords(std::string_view text, std::string_view separators, std::size_t most_fields)
    : text_(text), most_fields_(most_fields), separator_(','), line_end_(line_end_of(text)) {
  separator_ = separator_of(text, separators, line_end_);
}

bool CsvRecords::next() {
  fields.clear();
  damage.clear();
  line = next_line_;
  if (at_ >= text_.size()) return false;
  const std::size_t begin = at_;
  while (field()) {
  }
  if (!damage.empty()) {  // what a bad quote holds is not known: the next line begins anew
    at_ = std::min(text_.find(line_end_, begin), text_.size() - 1) + 1;
    next_line_ = line + 1;
  }
  return true;
}

// Returns whether another one follows.
bool CsvRecords::field() {
  if (fields.size() == most_fields_) return damage = "has over " + std::to_string(most_fields_) + " fields", false;
  auto& value = fields.emplace_back();
  const bool is_quoted = is_at('"');
  if (is_quoted) {
    if (!quoted(value)) return damage = "a quote is not closed", false;
  } else {
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != line_end_) value += text_[at_++];
  }
  while (is_quoted && is_at(' ')) ++at_;
  if (is_at(separator_)) return ++at_, true;
  if (line_end_ == '\n' && is_quoted && is_at('\r')) ++at_;
  if (line_end_ == '\n' && !is_quoted && value.ends_with('\r')) value.pop_back();
  if (at_ < text_.size() && !is_at(line_end_)) return damage = "a field goes on behind its closing quote", false;
  ++at_;
  ++next_line_;
  return false;
}

bool CsvRecords::quoted(std::string& value) {
  for (++at_; at_ < text_.size() && value.size() < limits::kCellBytes; ++at_) {
    if (is_at('"') && (++at_, !is_at('"'))) return true;
    if (is_at(line_end_)) ++next_line_;
    value += text_[at_];
  }
  return false;
}

}  // namespace ditto::formats
