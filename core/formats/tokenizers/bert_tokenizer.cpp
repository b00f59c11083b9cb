// BERT's tokenizer (Devlin et al. 2018): a text is cut into words at spaces and signs, and each word into the longest
// pieces of the vocabulary from its begin on, of which all but the first are written with "##" there.
#include <ditto/text.h>

#include "core/formats/tokenizers/tokenizer.h"
#include "core/formats/tokenizers/unicode.h"
#include "core/formats/tokenizers/vocabulary_files.h"

namespace ditto::formats {

namespace {

constexpr const char* kInside = "##";
constexpr std::int64_t kLongestWord = 100;  // characters, by default; a longer one is unknown as a whole
constexpr const char* kRemedy = "copy the folder of a BERT model anew";

// Ideographs, each a word of its own.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_sign(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~') ||
         unicode::is_punctuation(c);
}

class BertTokenizer final : public Tokenizer {
 public:
  BertTokenizer(const std::string& folder, const TokenOptions& options) : Tokenizer(folder, options) {
    VocabularyFiles files(folder);
    if (files.setting("do_basic_tokenize") == false)
      throw Error(ErrorKind::config, files.path("tokenizer_config.json"),
                  "\"do_basic_tokenize\" is false, and texts are cut at spaces and signs here",
                  "name another tokenizer");
    std::int64_t size = 0;
    if (files.has("vocab.txt") || !files.has("tokenizer.json"))
      size = read_two_files(files);
    else
      size = read_one_file(files);
    const auto find = [&](const std::string& word) -> std::optional<std::int64_t> {
      const auto at = words_.find(word);
      return at == words_.end() ? std::nullopt : std::optional(at->second);
    };
    set_up(files, find, {{"cls_token", "[CLS]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}}, size);
    const std::string unknown = files.word("unk_token").value_or("[UNK]");
    if (!find(unknown))
      throw Error(ErrorKind::config, folder, "has no piece '" + shown(unknown) + "' for unknown words", kRemedy);
    unknown_ = *find(unknown);
  }

 private:
  static bool flag(const nlohmann::json& value, bool otherwise, std::string_view key, const std::string& where) {
    if (value.is_null()) return otherwise;
    if (!value.is_boolean())
      throw Error(ErrorKind::config, where,
                  "\"" + std::string(key) + "\" is " + shown(value.dump()) + ", and true or false is expected",
                  kRemedy);
    return value.get<bool>();
  }

  std::int64_t read_two_files(VocabularyFiles& files) {
    const auto said = [&](std::string_view key, bool otherwise) {
      return flag(files.setting(key), otherwise, key, files.path("tokenizer_config.json"));
    };
    way_.lower = said("do_lower_case", true);
    way_.strip_accents = said("strip_accents", way_.lower);
    way_.ideographs = said("tokenize_chinese_chars", true);
    if (way_of(files.beside("tokenizer.json"), way_, files.path("tokenizer.json")) != way_) refuse_two_ways(files);
    const std::string text = files.read("vocab.txt");
    std::int64_t line = 0;
    for (std::string_view rest = text; !rest.empty(); ++line) {
      auto word = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
      if (word.ends_with('\r')) word.remove_suffix(1);
      words_.insert_or_assign(std::string(word), line);
    }
    return line;
  }

  // How a text is cut, as a tokenizer.json says it.
  struct Way {
    bool lower, strip_accents, ideographs;
    std::int64_t longest;
    bool operator==(const Way&) const = default;
  };
  static nlohmann::json part(const nlohmann::json& file, const char* key) {
    return file.is_object() ? file.value(key, nlohmann::json()) : nlohmann::json();
  }
  static Way way_of(const nlohmann::json& file, const Way& otherwise, const std::string& where) {
    const auto normaliser = part(file, "normalizer");
    const auto said = [&](const char* key, bool other) { return flag(part(normaliser, key), other, key, where); };
    Way way = otherwise;
    way.lower = said("lowercase", way.lower);
    way.strip_accents = said("strip_accents", part(normaliser, "lowercase").is_null() ? way.strip_accents : way.lower);
    way.ideographs = said("handle_chinese_chars", way.ideographs);
    const auto longest = part(part(file, "model"), "max_input_chars_per_word");
    if (longest.is_number_unsigned()) way.longest = longest.get<std::int64_t>();
    return way;
  }
  [[noreturn]] static void refuse_two_ways(const VocabularyFiles& files) {
    throw Error(
        ErrorKind::config, files.path("tokenizer.json"),
        "cuts texts otherwise than tokenizer_config.json says: of case (\"do_lower_case\"), accents, ideographs "
        "or the longest word",
        "make the two say the same, or leave one tokenizer's files alone in the folder");
  }

  std::int64_t read_one_file(VocabularyFiles& files) {
    const std::string where = files.path("tokenizer.json");
    const auto file = files.read_json("tokenizer.json");
    const auto model = part(file, "model"), normaliser = part(file, "normalizer");
    const auto is = [](const nlohmann::json& object, const char* key, const char* value) {
      return object.is_object() && object.value(key, nlohmann::json()) == value;
    };
    if (!is(model, "type", "WordPiece") || !is(model, "continuing_subword_prefix", kInside) ||
        !is(normaliser, "type", "BertNormalizer"))
      throw Error(ErrorKind::config, where,
                  "is no tokenizer of BERT's: it has no \"WordPiece\" with \"##\" behind a \"BertNormalizer\"",
                  kRemedy);
    way_ = way_of(file, way_, where);
    if (const auto lower = files.setting("do_lower_case"); lower.is_boolean() && lower != way_.lower)
      refuse_two_ways(files);
    words_ = VocabularyFiles::words_of(model.value("vocab", nlohmann::json()), where);
    return static_cast<std::int64_t>(words_.size());
  }

  std::vector<std::int64_t> split(const std::string& text) const override {
    std::u32string clean;
    for (const char32_t c : unicode::characters(text)) {
      const bool line = c == '\t' || c == '\n' || c == '\r';
      if (c == 0xFFFD || (!line && unicode::is_other(c))) continue;
      const bool alone = way_.ideographs && is_ideograph(c);
      if (alone) clean += U' ';
      clean += c;
      if (alone) clean += U' ';
    }
    if (way_.strip_accents) {
      clean = unicode::characters(unicode::decomposed(unicode::text(clean)));
      std::erase_if(clean, unicode::is_nonspacing);
    }
    if (way_.lower) clean = unicode::lower(clean);
    std::vector<std::int64_t> ids;
    for (std::u32string_view rest = clean; !rest.empty();) {
      std::size_t length = 0;
      while (length < rest.size() && !unicode::is_space(rest[length]) && !is_sign(rest[length])) ++length;
      if (length == 0 && !unicode::is_space(rest[0])) length = 1;  // a sign
      if (length > 0) add_word(rest.substr(0, length), ids);
      rest.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return ids;
  }

  void add_word(std::u32string_view word, std::vector<std::int64_t>& ids) const {
    const std::size_t before = ids.size();
    const auto unknown = [&] {
      ids.resize(before);
      ids.push_back(unknown_);
    };
    if (word.size() > static_cast<std::size_t>(way_.longest)) return unknown();
    while (!word.empty()) {
      std::size_t length = word.size();
      for (; length > 0; --length) {
        const auto at = words_.find((ids.size() == before ? "" : kInside) + unicode::text(word.substr(0, length)));
        if (at == words_.end()) continue;
        ids.push_back(at->second);
        break;
      }
      if (length == 0) return unknown();
      word.remove_prefix(length);
    }
  }

  Words words_;
  std::int64_t unknown_ = 0;
  Way way_{true, true, true, kLongestWord};
};

}  // namespace

std::unique_ptr<const Tokenizer> open_bert_tokenizer(const std::string& folder, const TokenOptions& options) {
  return std::make_unique<BertTokenizer>(folder, options);
}

}  // namespace ditto::formats
