// Tables of numbers as text: one row a line, fields parted by commas, semicolons or tabs; plain or gzip.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ditto::formats {

struct NumberTable {
  std::vector<std::string> columns;       // names from the first line; empty where it holds numbers already
  std::vector<std::vector<double>> rows;  // all of one length
};

// Throws Error(data) "FILE:LINE:FIELD: …" for a field that is not a finite number, and a row of another length than the
// first; "FILE: …" for a file that cannot be read, is damaged gzip, is over 4 GiB of text, or holds no row.
NumberTable read_number_table(const std::string& path);
NumberTable parse_number_table(std::string_view text, std::string_view where);

// A whole file, unpacked where it is gzip. Throws Error(data).
std::string read_maybe_gzip(const std::string& path, std::size_t most_bytes);

}  // namespace ditto::formats
