// What tables say of pictures: metadata.jsonl and metadata.csv, as Hugging Face's folders of pictures have them.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ditto {

inline constexpr const char* kNotesStem = "metadata";
std::string lower_case(std::string text);
bool is_notes_name(const std::filesystem::path& path);  // in any case of letters

// A row of such a table names a picture, relative to the table's folder, in "file_name" (or "file", "path", "image");
// its "text" or "caption" is the caption. All of its fields are kept, those of a CSV (.csv, .tsv) as texts.
class PictureNotes {
 public:
  // `base`: the folder that names are relative to. Throws Error(data) with the line of what is none of this, or names a
  // picture a second time.
  void read(const std::string& table, const std::filesystem::path& base);  // CSV by its name, else JSON Lines
  // Throws Error(data) for a table that was read and has no caption in any row.
  void require_captions(const std::string& table) const;

  const nlohmann::json* find(const std::filesystem::path& picture) const;  // null: nothing is said of it
  static std::string caption(const nlohmann::json& notes);                 // empty: it has none
  // "TABLE names 3 pictures that are not there: a.png, …", a sentence a table. `pictures` are in order.
  std::vector<std::string> not_there(const std::vector<std::filesystem::path>& pictures) const;

 private:
  struct Row {
    nlohmann::json fields;
    std::string table;
  };
  void read_csv(const std::string& table, const std::filesystem::path& base);
  void read_lines(const std::string& table, const std::filesystem::path& base);
  void add(nlohmann::json row, const std::string& where, const std::string& table, const std::filesystem::path& base);
  std::map<std::filesystem::path, Row> rows_;
};

}  // namespace ditto
