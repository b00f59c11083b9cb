#include "core/formats/tokenizers/tokenizer.h"

#include <algorithm>

#include <ditto/text.h>

#include "core/formats/text/utf8.h"
#include "core/formats/tokenizers/unicode.h"
#include "core/formats/tokenizers/vocabulary_files.h"

namespace ditto::formats {

namespace {

constexpr std::int64_t kSpareRows = 255;

}  // namespace

Cleaning cleaning_of(std::string_view name) {
  if (name == "none") return Cleaning::none;
  if (name == "whitespace") return Cleaning::whitespace;
  if (name == "clip") return Cleaning::clip;
  throw Error(ErrorKind::config, "clean", "is " + shown(name), "use \"none\", \"whitespace\" or \"clip\"");
}

Tokenizer::~Tokenizer() = default;

void Tokenizer::set_up(const VocabularyFiles& files, const Find& find, const SpecialWords& words, std::int64_t size) {
  const auto id_of = [&](const std::pair<const char*, const char*>& named, const std::optional<std::string>& asked) {
    const std::string word = asked ? *asked : files.word(named.first).value_or(named.second);
    if (const auto id = find(word)) return *id;
    throw Error(ErrorKind::config, folder_,
                "has no piece '" + shown(word) + "', which " +
                    (asked ? "pad" : "\"" + std::string(named.first) + "\"") + " names",
                "name a piece of its vocabulary, or the folder of another tokenizer");
  };
  for (const char* side : {"padding_side", "truncation_side"})
    if (const auto value = files.setting(side); !value.is_null() && value != "right")
      throw Error(ErrorKind::config, files.path("tokenizer_config.json"),
                  "\"" + std::string(side) + "\" is " + shown(value.dump()) +
                      ", and texts begin at a row's begin and lose their end here",
                  "set it to \"right\", if the encoder was trained so");
  for (const auto& word : files.added_words())
    if (!find(word))
      throw Error(ErrorKind::config, folder_,
                  "adds the word '" + shown(word) + "', and texts are cut into its vocabulary's own pieces here",
                  "name a tokenizer, and weights, without added words");
  vocabulary_ = size;
  fingerprint_ = files.fingerprint();
  if (words.begin.first) begin_ = id_of(words.begin, {});
  end_ = id_of(words.end, {});
  pad_ = id_of(words.pad, options_.pad);
  const std::int64_t least = begin_ ? 3 : 2;
  if (options_.tokens < least)
    throw Error(ErrorKind::config, folder_,
                "rows of " + std::to_string(options_.tokens) + " tokens have no place for text",
                "give rows of at least " + std::to_string(least) + " tokens");
}

std::vector<std::int64_t> Tokenizer::pieces(std::string_view text, std::string_view where) const {
  if (const auto at = utf8_damage(text))
    throw Error(ErrorKind::data, where, "is no UTF-8 at byte " + std::to_string(*at), "save it as UTF-8");
  if (options_.cleaning == Cleaning::none) return split(std::string(text));
  std::string clean = unicode::single_spaced(text);
  if (options_.cleaning == Cleaning::clip)
    clean = unicode::text(unicode::lower(unicode::characters(unicode::composed(clean))));
  return split(clean);
}

TokenRow Tokenizer::row(std::string_view text, std::string_view where) const {
  const auto all = pieces(text, where);
  const auto places = static_cast<std::size_t>(options_.tokens);
  const std::size_t marks = begin_ ? 2 : 1, kept = std::min(all.size(), places - marks);
  TokenRow row;
  row.ids.reserve(places);
  if (begin_) row.ids.push_back(*begin_);
  row.ids.insert(row.ids.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept));
  row.ids.push_back(end_);
  row.length = static_cast<std::int64_t>(row.ids.size());
  row.ids.resize(places, pad_);
  return row;
}

void Tokenizer::require_table(std::int64_t rows, std::string_view where) const {
  if (rows >= vocabulary_ && rows - vocabulary_ <= kSpareRows) return;
  throw Error(ErrorKind::config, where,
              "has a row for each of " + std::to_string(rows) + " pieces, and the vocabulary of " + folder_ + " has " +
                  std::to_string(vocabulary_),
              "name the tokenizer that the encoder was trained with");
}

}  // namespace ditto::formats
