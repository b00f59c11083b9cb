// The fields of a YAML file as its importer takes them: each once, by the keys that lead to it ("model.unet.channels").
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace ditto {

class NemoFields {
 public:
  // Throws Error(config) for text that is no YAML, or no map.
  NemoFields(const std::string& yaml, const std::string& file);

  // Whether it is there, with whatever value.
  bool has(const std::string& field) const { return find(field) != nullptr; }
  // The value, where "${a.b}" is that of another field; null where it is missing. Taken.
  nlohmann::json take(const std::string& field);
  // The same of a kind. Throws Error(config) for another kind, and, without `otherwise`, where it is missing or null.
  double number(const std::string& field);
  int64_t whole(const std::string& field);
  int64_t whole(const std::string& field, int64_t otherwise);
  bool flag(const std::string& field, bool otherwise);
  std::string word(const std::string& field);
  std::string word(const std::string& field, const std::string& otherwise);
  // One of these as what it stands for.
  std::string one_of(const std::string& field, const std::string& otherwise,
                     const std::map<std::string, std::string>& words);
  // Takes a field whose value must be one of these where it is there at all.
  void demand(const std::string& field, const std::vector<nlohmann::json>& values, const std::string& why,
              const std::string& remedy);
  // Takes a field, or with ".*" all below it, that says nothing to a recipe; notes why where it is there.
  void leave_out(const std::string& field, const std::string& why);

  // Fields that nobody took: throws Error(config) for the first of them in the file.
  void refuse_rest() const;
  [[noreturn]] void refuse(const std::string& field, const std::string& what, const std::string& remedy) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const nlohmann::json* find(const std::string& field) const;
  [[noreturn]] void refuse_kind(const std::string& field, const nlohmann::json& value, const char* kind) const;
  std::vector<std::string> leaves(const nlohmann::json& tree, const std::string& field) const;

  std::string file_;
  std::map<std::string, int> lines_;  // filled while tree_ is made
  nlohmann::json tree_;
  std::set<std::string> taken_;
  std::vector<std::string> notes_;
};

}  // namespace ditto
