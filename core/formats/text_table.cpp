#include "core/formats/text_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/json.h"
#include "core/formats/limits.h"
#include "core/formats/table.h"
#include "core/formats/utf8.h"

namespace ditto::formats {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kBadKept = 100;

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

// Without its byte order mark. UTF-16 ("Unicode text" of Excel) would be a riddle about columns.
std::string_view as_utf8(std::string_view text, std::string_view where) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto first = text.substr(0, 64);
  if (first.starts_with("\xFF\xFE") || first.starts_with("\xFE\xFF") || first.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::data, where, "is UTF-16 or another encoding with NUL bytes; UTF-8 is expected",
                "save it as UTF-8 (in Excel: \"CSV UTF-8\")");
  return text;
}

// One record of CSV after another. Quoted fields may hold separators, line ends, and "" for a quote.
class Records {
 public:
  Records(std::string_view text, char separator, char line_end)
      : text_(text), separator_(separator), line_end_(line_end) {}

  std::vector<std::string> fields;
  std::size_t line = 0;  // where the record begins
  std::string damage;    // empty: it is whole

  bool next() {
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

 private:
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }

  // Returns whether another one follows.
  bool field() {
    if (fields.size() == limits::kTextColumns) return damage = "has over 10,000 fields", false;
    auto& value = fields.emplace_back();
    const bool is_quoted = is_at('"');
    if (is_quoted) {
      if (!quoted(value)) return damage = "a quote is not closed", false;
    } else {
      while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != line_end_) value += text_[at_++];
    }
    if (is_at(separator_)) return ++at_, true;
    if (line_end_ == '\n' && is_quoted && is_at('\r')) ++at_;
    if (line_end_ == '\n' && !is_quoted && value.ends_with('\r')) value.pop_back();
    if (at_ < text_.size() && !is_at(line_end_)) return damage = "a field goes on behind its closing quote", false;
    ++at_;
    ++next_line_;
    return false;
  }

  bool quoted(std::string& value) {
    for (++at_; at_ < text_.size() && value.size() < limits::kCellBytes; ++at_) {
      if (is_at('"') && (++at_, !is_at('"'))) return true;
      if (is_at(line_end_)) ++next_line_;
      value += text_[at_];
    }
    return false;
  }

  std::string_view text_;
  char separator_, line_end_;
  std::size_t at_ = 0, next_line_ = 1;
};

char separator_of(std::string_view text, char line_end) {
  const auto line = text.substr(0, text.find(line_end));
  for (const char c : {'\t', ',', ';'})
    if (line.find(c) != std::string_view::npos) return c;
  return ',';
}

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

void read_columns(TextTable& table, const Records& first, std::string_view where) {
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
  const char line_end = line_end_of(text);
  Records records(text, separator_of(text, line_end), line_end);
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
    throw Error(ErrorKind::data, where, "the table has no row but its first line");
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
