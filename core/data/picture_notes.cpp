#include "core/data/picture_notes.h"

#include <algorithm>
#include <sstream>

#include <ditto/error.h>

#include "core/formats/file.h"
#include "core/formats/json.h"
#include "core/formats/limits.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

// The first of these fields that is text.
const std::string* text_in(const nlohmann::json& row, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto it = row.find(name); it != row.end() && it->is_string()) return it->get_ptr<const std::string*>();
  return nullptr;
}

}  // namespace

void PictureNotes::read(const std::string& table, const fs::path& base) {
  std::istringstream lines(formats::read_file(table, ErrorKind::data, formats::limits::kTableBytes));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto where = table + ":" + std::to_string(number);
    auto row = formats::parse_json(line, where, ErrorKind::data);
    const auto* name = row.is_object() ? text_in(row, {"file_name", "file", "path", "image"}) : nullptr;
    if (!name)
      throw Error(ErrorKind::data, where, "names no picture", "write {\"file_name\": \"cat/1.jpg\", \"text\": \"…\"}");
    const auto picture = (base / *name).lexically_normal();
    if (!rows_.emplace(picture, Row{std::move(row), table}).second)
      throw Error(ErrorKind::data, where, "is the second line about " + picture.string(), "leave one of them");
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
    auto text = table + " names " + std::to_string(names.size()) + " pictures that are not there: ";
    for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
    said.push_back(names.size() > kNamed ? text + ", …" : text);
  }
  return said;
}

}  // namespace ditto
