// What tables say of pictures: metadata.jsonl, as Hugging Face's folders of pictures have it.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ditto {

inline constexpr const char* kNotesName = "metadata.jsonl";

// A line of such a table is an object that names a picture, relative to the table's folder, in "file_name" (or "file",
// "path", "image"); its "text" or "caption" is the caption. All of its fields are kept.
class PictureNotes {
 public:
  // `base`: the folder that names are relative to. Throws Error(data) with the line of what is none of this, or names a
  // picture a second time.
  void read(const std::string& table, const std::filesystem::path& base);

  const nlohmann::json* find(const std::filesystem::path& picture) const;  // null: nothing is said of it
  static std::string caption(const nlohmann::json& notes);                 // empty: it has none
  // "TABLE names 3 pictures that are not there: a.png, …", a sentence a table. `pictures` are in order.
  std::vector<std::string> not_there(const std::vector<std::filesystem::path>& pictures) const;

 private:
  struct Row {
    nlohmann::json fields;
    std::string table;
  };
  std::map<std::filesystem::path, Row> rows_;
};

}  // namespace ditto
