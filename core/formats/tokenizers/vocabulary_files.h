// The files of a tokenizer's folder, as transformers saves them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ditto::formats {

using Words = std::unordered_map<std::string, std::int64_t>;  // with their ids

class VocabularyFiles {
 public:
  explicit VocabularyFiles(const std::string& folder);  // throws Error(config) where there is none

  std::string path(std::string_view name) const { return folder_ + "/" + std::string(name); }
  bool has(std::string_view name) const;
  // All of a file, which is UTF-8 but for a SentencePiece model, and from then on part of the fingerprint.
  // Error(config).
  std::string read(std::string_view name);
  nlohmann::json read_json(std::string_view name);
  // The same of a file that is compared alone, and no part of the fingerprint; null: there is none.
  nlohmann::json beside(std::string_view name) const;
  // {"word": id, …}, whose ids are 0, 1, … in any order; `where` names it in Error(config).
  static Words words_of(const nlohmann::json& object, const std::string& where);

  // What the settings say of a key; null: nothing. The file of special words comes first, but where the other lists the
  // words that were added, as transformers has it.
  nlohmann::json setting(std::string_view key) const;
  // The word that a setting names: "word" or {"content": "word"}.
  std::optional<std::string> word(std::string_view key) const;

  // Words that somebody added to the vocabulary, and that are not special: transformers cuts a text at them first.
  // Error(config).
  std::vector<std::string> added_words() const;

  // SHA-256 over what sha256sum prints of the files read, in the order of their reading.
  std::string fingerprint() const;

 private:
  std::string folder_, sums_;
  nlohmann::json config_ = nlohmann::json::object(), special_ = nlohmann::json::object();
};

}  // namespace ditto::formats
