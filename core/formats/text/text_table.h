// Tables of texts, one row a sample: CSV (RFC 4180; commas, semicolons or tabs) and JSON Lines, plain or gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ditto::formats {

struct TextTable {
  // A row that is none: line 7, "has 3 fields; the first line names 4".
  struct BadRow {
    std::size_t line;
    std::string what;
  };

  std::vector<std::string> columns;  // all that the first line names, or the first object
  std::vector<std::size_t> lines;    // of each row, where it begins in the file; 1 is the first
  std::vector<BadRow> bad;           // the first hundred
  std::size_t bad_rows = 0;          // of all

  std::size_t rows() const { return lines.size(); }
  // `column`: its number among those wanted. "": an empty cell, null, or not there.
  std::string_view at(std::size_t row, std::size_t column) const;

  std::size_t width = 0;  // columns wanted
  std::string cells;      // one after another, row by row
  std::vector<std::uint64_t> ends;
};

// Keeps the wanted columns. Of a JSON object texts, numbers and booleans are taken. A bad row has another number of
// fields, quotes that are not closed, bytes that are no UTF-8 or another kind of value, or is no JSON object. Throws
// Error(data) "WHERE: …" for a table without rows, with a column twice, or without a wanted one (of JSON Lines: in no
// object).
TextTable parse_csv(std::string_view text, std::string_view where, const std::vector<std::string>& wanted);
TextTable parse_json_lines(std::string_view text, std::string_view where, const std::vector<std::string>& wanted);

// By the file's name: .csv, .tsv, .jsonl, .ndjson, each with .gz too. Throws Error(data), also as read_maybe_gzip does.
TextTable read_text_table(const std::string& path, const std::vector<std::string>& wanted);

}  // namespace ditto::formats
