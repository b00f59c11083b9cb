// Tables of numbers as text: one row a line, fields parted by commas, semicolons or tabs; plain or gzip.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ditto::formats {

struct NumberTable {
  std::vector<std::string> columns;  // names from the first line; empty where it holds numbers already
  std::size_t width = 0;             // numbers in a row
  std::vector<double> numbers;       // row after row

  std::size_t rows() const { return numbers.size() / width; }
  std::span<const double> row(std::size_t number) const { return std::span(numbers).subspan(number * width, width); }
};

// Throws Error(data) "FILE:LINE:FIELD: …" for a field that is not a finite number, and a row of another length than the
// first; "FILE: …" for a file that cannot be read, is damaged gzip or shrank too well for a table (limits.h), is over
// 1 GiB of text, or holds no row.
NumberTable read_number_table(const std::string& path);
NumberTable parse_number_table(std::string_view text, std::string_view where);

// A whole regular file, unpacked where it is gzip. Throws Error(data).
std::string read_maybe_gzip(const std::string& path);

}  // namespace ditto::formats
