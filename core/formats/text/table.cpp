#include "core/formats/text/table.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include <ditto/error.h>

#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/text/csv.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

// What programs put around numbers.
void trim(std::string& text) {
  constexpr std::string_view kSpace = " \r\"";
  text.erase(text.find_last_not_of(kSpace) + 1);
  text.erase(0, text.find_first_not_of(kSpace));
}

bool number(std::string_view text, double& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

std::string place(std::string_view where, std::size_t line, std::size_t field) {
  return std::string(where) + ":" + std::to_string(line) + ":" + std::to_string(field);
}

// The first line names the columns if none of its fields is a number.
bool is_header(const std::vector<std::string>& fields) {
  double value = 0;
  for (const auto& field : fields)
    if (number(field, value)) return false;
  return true;
}

// By its mark, or by its first two letters; another byte of zero is said with its place.
bool is_utf16(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return true;
  const auto is_zero = [&](std::size_t i) { return text[i] == '\0'; };
  return text.size() >= 4 && is_zero(0) != is_zero(1) && is_zero(0) == is_zero(2) && is_zero(1) == is_zero(3);
}

void add_row(const std::vector<std::string>& fields, std::string_view where, std::size_t line,
             std::vector<double>& numbers) {
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (!number(fields[i], numbers.emplace_back()))
      throw Error(ErrorKind::data, place(where, line, i + 1),
                  "found \"" + fields[i].substr(0, 40) + "\", expected a number", "correct the table");
}

}  // namespace

std::string read_maybe_gzip(const std::string& path) {
  const auto fail = [&](const std::string& what, std::string_view remedy) {
    throw Error(ErrorKind::data, path, what, remedy);
  };
  std::error_code status;
  if (std::filesystem::exists(path, status) && !std::filesystem::is_regular_file(path, status))
    fail("is not a regular file", "name a file with a table in it");
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (const auto dangling = said_of_dangling(path); !file && !dangling.empty())
    fail(dangling, "bring that back, or name what is meant");
  if (!file) fail(std::string("cannot be opened: ") + std::strerror(errno), "check the path");
  std::string text;
  constexpr unsigned kChunk = 1u << 20;
  for (int got = 1; got > 0;) {
    const auto before = text.size();
    text.resize(before + kChunk);
    got = gzread(file.get(), text.data() + before, kChunk);
    text.resize(before + static_cast<std::size_t>(std::max(got, 0)));
    if (text.size() > limits::kTableBytes) fail("holds more than 1 GiB of text", "split it");
    const auto packed = static_cast<std::size_t>(std::max<z_off_t>(gzoffset(file.get()), 0));
    if (text.size() > limits::kUnpackedFreeBytes + limits::kUnpackedTimesPacked * packed)
      fail("its first " + std::to_string(packed) + " bytes unpack to " + std::to_string(text.size()) + ", over " +
               std::to_string(limits::kUnpackedTimesPacked) + " times as many and 16 MiB; a table does not",
           "if it is one, unpack it first");
  }
  int code = Z_OK;
  const char* message = gzerror(file.get(), &code);
  if (code != Z_OK)
    fail(std::string("cannot be read: ") + (code == Z_ERRNO ? std::strerror(errno) : message),
         "the file is damaged or cut off; write it again");
  return text;
}

NumberTable parse_number_table(std::string_view text, std::string_view where) {
  NumberTable table;
  CsvRecords records(is_utf16(text) ? as_utf8(text, where) : without_mark(text), "\t;,", limits::kTableWidth);
  while (records.next()) {
    const auto refuse = [&](const std::string& what, std::string_view remedy) {
      throw Error(ErrorKind::data, std::string(where) + ":" + std::to_string(records.line), what, remedy);
    };
    if (!records.damage.empty()) refuse(records.damage, "check the file");
    auto& fields = records.fields;
    for (auto& field : fields) trim(field);
    if (fields.size() == 1 && fields.front().empty()) continue;
    if (table.width == 0) {
      table.width = fields.size();
      if (is_header(fields)) {
        table.columns = fields;
        continue;
      }
    }
    if (fields.size() != table.width)
      refuse("found " + std::to_string(fields.size()) + " fields, the first line has " + std::to_string(table.width),
             "give every row the same number of fields");
    add_row(fields, where, records.line, table.numbers);
  }
  if (table.numbers.empty()) throw Error(ErrorKind::data, where, "the table holds no row of numbers", "check the file");
  return table;
}

NumberTable read_number_table(const std::string& path) { return parse_number_table(read_maybe_gzip(path), path); }

}  // namespace ditto::formats
