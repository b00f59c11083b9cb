#include "core/formats/text/text_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/limits.h"
#include "core/formats/text/csv.h"
#include "core/formats/text/json.h"
#include "core/formats/text/table.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

constexpr std::size_t kBadKept = 100;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string names_of(const std::vector<std::string>& columns) {
  std::string text;
  for (const auto& column : columns) {
    if (text.size() > kNameShown) return text + ", …";
    text += (text.empty() ? "" : ", ") + shown(column, 60);
  }
  return text;
}

[[noreturn]] void lacks(std::string_view where, const std::string& column, const TextTable& table) {
  throw Error(ErrorKind::data, where,
              "has no column \"" + shown(column, 60) + "\"; its columns: " + names_of(table.columns),
              "name one of them, or add it to the table");
}

void add_bad(TextTable& table, std::size_t line, std::string what) {
  if (table.bad_rows++ < kBadKept) table.bad.push_back({line, std::move(what)});
}

void add_row(TextTable& table, std::size_t line, const std::vector<std::string>& fields) {
  table.lines.push_back(line);
  for (const auto& field : fields) table.ends.push_back((table.cells += field).size());
}

void read_columns(TextTable& table, const CsvRecords& first, std::string_view where) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::data, std::string(where) + ":1", what, "write the columns' names there, each once");
  };
  if (!first.damage.empty()) refuse(first.damage);
  if (first.fields.size() < 2 && (first.fields.empty() || is_blank(first.fields.front())))
    refuse("the first line names no column");
  table.columns = first.fields;
  std::set<std::string_view> seen;
  for (const auto& column : table.columns)
    if (utf8_damage(column) || !seen.insert(column).second)
      refuse("the column \"" + shown(column, 60) + "\" is " + (utf8_damage(column) ? "no UTF-8" : "there twice"));
}

std::string text_of(const nlohmann::json& object, const std::string& column) {
  const auto it = object.find(column);
  if (it == object.end() || it->is_null()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_number() || it->is_boolean()) return it->dump();
  throw Error(ErrorKind::data, "\"" + shown(column, 60) + "\"",
              "is " + shown(it->dump(), 40) + "; expected a text or a number");
}

}  // namespace

std::string_view TextTable::at(std::size_t row, std::size_t column) const {
  const auto cell = row * width + column;
  const auto begin = cell == 0 ? 0 : ends.at(cell - 1);
  return std::string_view(cells).substr(begin, ends.at(cell) - begin);
}

TextTable parse_csv(std::string_view text, std::string_view where, const std::vector<std::string>& wanted) {
  text = as_utf8(text, where);
  TextTable table;
  table.width = wanted.size();
  CsvRecords records(text, "\t,;", limits::kTextColumns);
  records.next();
  read_columns(table, records, where);
  std::vector<std::size_t> places;
  for (const auto& column : wanted) {
    const auto at = std::find(table.columns.begin(), table.columns.end(), column);
    if (at == table.columns.end()) lacks(where, column, table);
    places.push_back(static_cast<std::size_t>(at - table.columns.begin()));
  }
  std::vector<std::string> fields;
  while (records.next()) {
    std::string what = records.damage;
    if (what.empty() && records.fields.size() == 1 && is_blank(records.fields.front())) continue;
    if (what.empty() && records.fields.size() != table.columns.size())
      what = "has " + std::to_string(records.fields.size()) + " fields; the first line names " +
             std::to_string(table.columns.size());
    fields.clear();
    for (std::size_t i = 0; i < places.size() && what.empty(); ++i) {
      fields.push_back(records.fields[places[i]]);
      if (utf8_damage(fields.back())) what = "\"" + shown(wanted[i], 60) + "\" is no UTF-8";
    }
    if (what.empty())
      add_row(table, records.line, fields);
    else
      add_bad(table, records.line, what);
  }
  if (table.rows() + table.bad_rows == 0)
    throw Error(ErrorKind::data, where, "the table has no row but its first line",
                "write rows below it, or remove the table");
  return table;
}

TextTable parse_json_lines(std::string_view text, std::string_view where, const std::vector<std::string>& wanted) {
  text = as_utf8(text, where);
  const char line_end = text.find('\n') == std::string_view::npos ? '\r' : '\n';  // JSON holds neither in a text
  TextTable table;
  table.width = wanted.size();
  std::vector<bool> there(wanted.size());
  std::vector<std::string> fields(wanted.size());
  for (std::size_t line = 1, begin = 0; begin < text.size(); ++line) {
    const auto content = text.substr(begin, text.find(line_end, begin) - begin);
    begin += content.size() + 1;
    if (is_blank(content)) continue;
    try {
      const auto object = parse_json(content, "the line", ErrorKind::data);
      if (!object.is_object()) throw Error(ErrorKind::data, "the line", "is no JSON object");
      if (table.columns.empty())
        for (const auto& [name, value] : object.items()) table.columns.push_back(name);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (object.contains(wanted[i])) there[i] = true;
        fields[i] = text_of(object, wanted[i]);
      }
      add_row(table, line, fields);
    } catch (const Error& error) {
      add_bad(table, line, error.what());
    }
  }
  if (table.rows() + table.bad_rows == 0) throw Error(ErrorKind::data, where, "the table has no row");
  for (std::size_t i = 0; i < wanted.size() && table.rows() > 0; ++i)
    if (!there[i]) lacks(where, wanted[i], table);
  return table;
}

TextTable read_text_table(const std::string& path, const std::vector<std::string>& wanted) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (name.ends_with(".csv") || name.ends_with(".tsv")) return parse_csv(read_maybe_gzip(path), path, wanted);
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson"))
    return parse_json_lines(read_maybe_gzip(path), path, wanted);
  throw Error(ErrorKind::data, path, "its name does not say what table it is",
              "name it .csv, .tsv or .jsonl, with .gz behind it where it is gzip");
}

}  // namespace ditto::formats
