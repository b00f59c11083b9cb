// The one file that sees toml++. Its assertions abort the process on some inputs ("[@"), so they are off here whatever
// the build, and what it still mishandles (text outside strings that is not ASCII) never reaches it.
#ifndef NDEBUG
#define NDEBUG
#endif
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 64
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>

#include "core/formats/mapped_file.h"
#include "core/formats/toml.h"
#include "core/formats/toml_guard.h"

namespace ditto::formats {

namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxFileBytes = 16u << 20;

using FileName = std::shared_ptr<const std::string>;

Source source_at(const FileName& file, const toml::source_position& place) {
  return {file, static_cast<std::int64_t>(place.line), static_cast<std::int64_t>(place.column)};
}

Node convert(const toml::node& node, const FileName& file, const Source& fallback, int depth);

Table convert_table(const toml::table& table, const FileName& file, const Source& fallback, int depth) {
  if (depth > kMaxDepth) throw Error(ErrorKind::config, fallback.text(), "tables and lists nest deeper than 64 here");
  Table result;
  for (const auto& [key, value] : table) {
    Source place = key.source().begin ? source_at(file, key.source().begin) : fallback;
    Node converted = convert(value, file, place, depth + 1);
    result.entries().push_back(Entry{std::string(key.str()), std::move(place), std::move(converted)});
  }
  // toml++ sorts by name; a recipe's reader wants the order that was written.
  std::stable_sort(result.entries().begin(), result.entries().end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.key_source.line, a.key_source.column) < std::pair(b.key_source.line, b.key_source.column);
  });
  return result;
}

Array convert_array(const toml::array& array, const FileName& file, const Source& fallback, int depth) {
  if (depth > kMaxDepth) throw Error(ErrorKind::config, fallback.text(), "tables and lists nest deeper than 64 here");
  Array result;
  result.reserve(array.size());
  for (const toml::node& element : array) result.push_back(convert(element, file, fallback, depth + 1));
  return result;
}

Node convert(const toml::node& node, const FileName& file, const Source& fallback, int depth) {
  Source place = node.source().begin ? source_at(file, node.source().begin) : fallback;
  if (const auto* table = node.as_table()) return {convert_table(*table, file, place, depth), place};
  if (const auto* array = node.as_array()) return {convert_array(*array, file, place, depth), place};
  if (const auto* text = node.as_string()) return {std::string(text->get()), place};
  if (const auto* integer = node.as_integer()) return {integer->get(), place};
  if (const auto* number = node.as_floating_point()) return {number->get(), place};
  if (const auto* boolean = node.as_boolean()) return {boolean->get(), place};
  throw Error(ErrorKind::config, place.text(), "a date or time is no value that an option takes",
              "write it as a string, in quotes");
}

Table parse_with_places(std::string_view text, const FileName& file) {
  const Source start{file, 1, 1};
  try {
    return convert_table(toml::parse(text, *file), file, start, 0);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::config, source_at(file, error.source().begin).text(),
                "this is not TOML: " + std::string(error.description()));
  }
}

void clear_places(Node& node, const Source& place) {
  node.source = place;
  if (auto* array = node.as<Array>()) {
    for (Node& element : *array) clear_places(element, place);
  } else if (auto* table = node.as<Table>()) {
    for (Entry& entry : table->entries()) {
      entry.key_source = place;
      clear_places(entry.value, place);
    }
  }
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "v = TEXT" as TOML. `text` must not bring further lines with keys of their own.
Node parse_single(std::string_view text, const FileName& name, const Source& place) {
  const std::string line = "v = " + std::string(text);
  check_toml_bytes(line, *name);
  Table table = parse_with_places(line, name);
  if (table.size() != 1) throw Error(ErrorKind::config, *name, "one value is expected, and more text follows it");
  Node value = std::move(table.entries().front().value);
  clear_places(value, place);
  return value;
}

}  // namespace

Table parse_toml(std::string_view text, std::string_view file) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  check_toml_bytes(text, file);
  return parse_with_places(text, std::make_shared<const std::string>(file));
}

Table parse_toml_file(const std::string& path) {
  const auto file = MappedFile::open(path, ErrorKind::config);
  if (file->bytes().size() > kMaxFileBytes)
    throw Error(ErrorKind::config, path, "is over 16 MiB, which no recipe is", "check the path");
  return parse_toml({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, path);
}

Node parse_toml_value(std::string_view text, std::string_view where) {
  const auto name = std::make_shared<const std::string>(where);
  const Source place{name, 0, 0};
  const std::string_view value = trimmed(text);
  if (value.empty()) return {std::string(), place};
  const bool quoted = std::string_view("\"'[{").find(value.front()) != std::string_view::npos;
  if (quoted) {
    try {
      return parse_single(value, name, place);
    } catch (const Error& error) {
      throw Error(ErrorKind::config, where,
                  "'" + std::string(value) + "' starts like a string, list or table and is none (" + error.what() + ")",
                  "put quotes around text that starts so");
    }
  }
  // The bytes are checked for the bare string too; a comment sign or a line's end makes it one.
  if (const auto damage = text_damage(value)) throw Error(ErrorKind::config, where, *damage);
  if (value.find_first_of("#\n\r") == std::string_view::npos) {
    try {
      return parse_single(value, name, place);
    } catch (const Error&) {  // not TOML: a bare string
    }
  }
  return {std::string(value), place};
}

}  // namespace ditto::formats
