#include "core/formats/tokenizers/vocabulary_files.h"

#include <algorithm>
#include <filesystem>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/sha256.h"
#include "core/formats/text/json.h"

namespace ditto::formats {

namespace {

constexpr const char *kConfig = "tokenizer_config.json", *kSpecial = "special_tokens_map.json",
                     *kOneFile = "tokenizer.json";
constexpr const char* kRemedy = "copy the folder \"tokenizer\" anew";

}  // namespace

VocabularyFiles::VocabularyFiles(const std::string& folder) : folder_(folder) {
  require_there(folder, "name the folder of a tokenizer's files");
  for (auto [name, into] : {std::pair{kConfig, &config_}, {kSpecial, &special_}}) {
    if (!has(name)) continue;
    *into = read_json(name);
    if (!into->is_object()) throw Error(ErrorKind::config, path(name), "is no JSON object of settings", kRemedy);
  }
}

bool VocabularyFiles::has(std::string_view name) const { return std::filesystem::exists(path(name)); }

std::string VocabularyFiles::read(std::string_view name) {
  std::string bytes = read_file(path(name), ErrorKind::config, limits::kVocabularyBytes);
  sums_ += sha256(bytes) + "  " + std::string(name) + "\n";
  return bytes;
}

nlohmann::json VocabularyFiles::read_json(std::string_view name) {
  return parse_json(read(name), path(name), ErrorKind::config);
}

Words VocabularyFiles::words_of(const nlohmann::json& object, const std::string& where) {
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::config, where, what, kRemedy); };
  if (!object.is_object() || object.empty()) refuse("is no JSON object of words and their ids");
  Words words;
  std::vector<bool> taken(object.size());
  for (const auto& [word, id] : object.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= taken.size())
      refuse("gives the word '" + shown(word) + "' the id " + shown(id.dump()) + ", and ids of " +
             std::to_string(taken.size()) + " words are 0 to " + std::to_string(taken.size() - 1));
    if (taken[id.get<std::size_t>()])
      refuse("gives '" + shown(word) + "' the id " + id.dump() + ", which another word has");
    taken[id.get<std::size_t>()] = true;
    words.emplace(word, id.get<std::int64_t>());
  }
  return words;
}

nlohmann::json VocabularyFiles::setting(std::string_view key) const {
  const bool config_first = config_.contains("added_tokens_decoder");
  for (const auto* settings : {config_first ? &config_ : &special_, config_first ? &special_ : &config_})
    if (const auto at = settings->find(key); at != settings->end() && !at->is_null()) return *at;
  return nullptr;
}

std::optional<std::string> VocabularyFiles::word(std::string_view key) const {
  auto value = setting(key);
  if (value.is_null()) return std::nullopt;
  if (value.is_object() && value.contains("content")) value = nlohmann::json(value["content"]);
  if (!value.is_string())
    throw Error(ErrorKind::config, folder_, "its settings name no word as \"" + std::string(key) + "\"", kRemedy);
  return value.get<std::string>();
}

nlohmann::json VocabularyFiles::beside(std::string_view name) const {
  if (!has(name)) return nullptr;
  return parse_json(read_file(path(name), ErrorKind::config, limits::kVocabularyBytes), path(name), ErrorKind::config);
}

std::vector<std::string> VocabularyFiles::added_words() const {
  std::vector<std::string> words;
  const auto add = [&](const nlohmann::json& one) {
    if (!one.is_object() || !one.contains("content") || !one["content"].is_string()) return;
    if (const auto special = one.find("special"); special == one.end() || *special != true)
      words.push_back(one["content"].get<std::string>());
  };
  const auto all = [&](const nlohmann::json& settings, const char* key) {
    const auto list = settings.is_object() ? settings.find(key) : settings.end();
    if (list != settings.end() && list->is_structured())
      for (const auto& one : *list) add(one);
  };
  all(config_, "added_tokens_decoder");
  all(beside(kOneFile), "added_tokens");
  if (config_.contains("added_tokens_decoder")) return words;
  const auto special = setting("additional_special_tokens");  // of folders that earlier versions saved
  const auto added = beside("added_tokens.json");
  if (added.is_object())
    for (const auto& [word, id] : added.items())
      if (!special.is_array() || std::find(special.begin(), special.end(), word) == special.end())
        words.push_back(word);
  return words;
}

std::string VocabularyFiles::fingerprint() const { return sha256(sums_); }

}  // namespace ditto::formats
