#include "core/dataset/picture_notes.h"

#include <algorithm>
#include <sstream>

#include <ditto/error.h>

#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/names.h"
#include "core/formats/text/json.h"
#include "core/formats/text/text_table.h"
#include "core/formats/text/utf8.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr std::initializer_list<const char*> kPictureFields{"file_name", "file", "path", "image"};

// The first of these fields that is text.
const std::string* text_in(const nlohmann::json& row, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto it = row.find(name); it != row.end() && it->is_string()) return it->get_ptr<const std::string*>();
  return nullptr;
}

}  // namespace

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_notes_name(const fs::path& path) {
  const auto name = lower_case(path.filename().string());
  return name == std::string(kNotesStem) + ".jsonl" || name == std::string(kNotesStem) + ".csv";
}

void PictureNotes::read(const std::string& table, const fs::path& base) {
  const auto suffix = lower_case(fs::path(table).extension().string());
  suffix == ".csv" || suffix == ".tsv" ? read_csv(table, base) : read_lines(table, base);
}

void PictureNotes::add(nlohmann::json row, const std::string& where, const std::string& table, const fs::path& base) {
  const auto* name = row.is_object() ? text_in(row, kPictureFields) : nullptr;
  if (!name)
    throw Error(ErrorKind::data, where, "names no picture",
                "call the picture \"file_name\" and its caption \"text\", or give the table another name");
  const auto picture = (base / *name).lexically_normal();
  if (!rows_.emplace(picture, Row{std::move(row), table}).second)
    throw Error(ErrorKind::data, where, "is the second line about " + picture.string(), "leave one of them");
}

void PictureNotes::read_lines(const std::string& table, const fs::path& base) {
  std::istringstream lines(formats::with_plain_ends(
      formats::without_mark(formats::read_file(table, ErrorKind::data, formats::limits::kTableBytes))));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const auto where = table + ":" + std::to_string(number);
    add(formats::parse_json(line, where, ErrorKind::data), where, table, base);
  }
}

void PictureNotes::read_csv(const std::string& table, const fs::path& base) {
  const auto text = formats::read_file(table, ErrorKind::data, formats::limits::kTableBytes);
  const auto columns = formats::parse_csv(text, table, {}).columns;
  const auto rows = formats::parse_csv(text, table, columns);
  if (rows.bad_rows > 0)
    throw Error(ErrorKind::data, table + ":" + std::to_string(rows.bad.front().line), rows.bad.front().what,
                "correct the row, or take it out");
  for (std::size_t i = 0; i < rows.rows(); ++i) {
    auto row = nlohmann::json::object();
    for (std::size_t c = 0; c < columns.size(); ++c) row[columns[c]] = std::string(rows.at(i, c));
    const auto where = table + ":" + std::to_string(rows.lines[i]);
    add(std::move(row), where, table, base);
  }
}

const nlohmann::json* PictureNotes::find(const fs::path& picture) const {
  const auto it = rows_.find(picture.lexically_normal());
  return it == rows_.end() ? nullptr : &it->second.fields;
}

std::string PictureNotes::caption(const nlohmann::json& notes) {
  const auto* text = text_in(notes, {"text", "caption"});
  return text ? *text : "";
}

void PictureNotes::require_captions(const std::string& table) const {
  std::size_t rows = 0;
  for (const auto& [picture, row] : rows_) {
    if (row.table != table) continue;
    if (!caption(row.fields).empty()) return;
    ++rows;
  }
  throw Error(ErrorKind::data, table,
              std::string("gives no caption: ") +
                  (rows == 0 ? "it has no row" : "no row has a \"text\" or \"caption\" that is not empty"),
              "call the captions \"text\", or name another table");
}

std::vector<std::string> PictureNotes::not_there(const std::vector<fs::path>& pictures) const {
  std::map<std::string, std::vector<std::string>> by_table;
  std::vector<fs::path> normal;
  for (const auto& picture : pictures) normal.push_back(picture.lexically_normal());
  std::sort(normal.begin(), normal.end());
  for (const auto& [picture, row] : rows_)
    if (!std::binary_search(normal.begin(), normal.end(), picture)) by_table[row.table].push_back(picture.string());
  std::vector<std::string> said;
  for (const auto& [table, names] : by_table) {
    constexpr size_t kNamed = 5;
    auto text = table + " names " + formats::counted(names.size(), "picture") + " that " +
                (names.size() == 1 ? "is" : "are") + " not there: ";
    for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
    said.push_back(names.size() > kNamed ? text + ", …" : text);
  }
  return said;
}

}  // namespace ditto
