// CLIP's tokenizer (Radford et al. 2021, after Sennrich et al. 2016): a text is cut into words by a pattern, each word
// into bytes, and of neighbouring pieces those are joined whose pair stands first in the list, until none stands there.
#include <array>
#include <queue>
#include <tuple>

#include <ditto/text.h>

#include "core/formats/tokenizers/tokenizer.h"
#include "core/formats/tokenizers/unicode.h"
#include "core/formats/tokenizers/vocabulary_files.h"

namespace ditto::formats {

namespace {

constexpr const char* kWordEnd = "</w>";
constexpr const char* kRemedy = "copy the folder \"tokenizer\" of a CLIP model anew";

// How the files write bytes: those that print in Latin-1 as that letter, the others as the letters from U+0100 on.
std::array<std::string, 256> byte_letters() {
  std::array<std::string, 256> letters;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    unicode::append(letters[byte], prints ? byte : next++);
  }
  return letters;
}

// The length of "'s", "'t", "'re", "'ve", "'m", "'ll" or "'d" that the text begins with; 0: none.
std::size_t contraction(std::u32string_view text) {
  for (const std::u32string_view ending : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"})
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

// The length of the word that the text begins with: a contraction's end, letters, one digit, or signs. Of lower case.
std::size_t word_length(std::u32string_view text) {
  using unicode::is_letter, unicode::is_number, unicode::is_space;
  if (const auto length = contraction(text)) return length;
  if (is_number(text[0])) return 1;
  std::size_t length = 1;
  const bool letters = is_letter(text[0]);
  const auto goes_on = [&](char32_t c) {
    return letters ? is_letter(c) : !is_letter(c) && !is_number(c) && !is_space(c);
  };
  while (length < text.size() && goes_on(text[length])) ++length;
  return length;
}

class ClipTokenizer final : public Tokenizer {
 public:
  ClipTokenizer(const std::string& folder, const TokenOptions& options) : Tokenizer(folder, options) {
    VocabularyFiles files(folder);
    const Words words = files.has("vocab.json") || files.has("merges.txt") || !files.has("tokenizer.json")
                            ? read_two_files(files)
                            : read_one_file(files);
    const auto find = [&](const std::string& word) -> std::optional<std::int64_t> {
      const auto at = words.find(word);
      return at == words.end() ? std::nullopt : std::optional(at->second);
    };
    const auto letters = byte_letters();
    for (std::size_t byte = 0; byte < 256; ++byte)
      for (auto [table, letter] : {std::pair{&bytes_, letters[byte]}, {&last_bytes_, letters[byte] + kWordEnd}}) {
        const auto id = find(letter);
        if (!id)
          throw Error(ErrorKind::config, folder, "has no piece '" + letter + "', and CLIP's have all bytes", kRemedy);
        (*table)[byte] = *id;
      }
    set_up(files, find,
           {{"bos_token", "<|startoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}},
           static_cast<std::int64_t>(words.size()));
  }

 private:
  struct Join {
    std::int64_t rank, piece;
  };

  Words read_two_files(VocabularyFiles& files) {
    const Words words = VocabularyFiles::words_of(files.read_json("vocab.json"), files.path("vocab.json"));
    const std::string text = files.read("merges.txt");
    std::int64_t line = 0;
    for (std::string_view rest = text; !rest.empty();) {
      auto pair = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
      if (pair.ends_with('\r')) pair.remove_suffix(1);
      if (++line == 1 && pair.starts_with("#version")) continue;
      if (!pair.empty()) add_join(words, pair, files.path("merges.txt") + ":" + std::to_string(line));
    }
    return words;
  }

  Words read_one_file(VocabularyFiles& files) {
    const std::string where = files.path("tokenizer.json");
    const auto file = files.read_json("tokenizer.json");
    const auto model = file.is_object() ? file.value("model", nlohmann::json()) : nlohmann::json();
    if (!model.is_object() || model.value("type", nlohmann::json()) != "BPE" ||
        model.value("end_of_word_suffix", nlohmann::json()) != kWordEnd || !model.contains("merges") ||
        !model["merges"].is_array())
      throw Error(ErrorKind::config, where, "is no tokenizer of CLIP's: it has no \"BPE\" whose words end with </w>",
                  kRemedy);
    const Words words = VocabularyFiles::words_of(model.value("vocab", nlohmann::json()), where);
    for (const auto& pair : model["merges"]) {
      const bool two = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
      if (!two && !pair.is_string())
        throw Error(ErrorKind::config, where, "joins " + shown(pair.dump()) + ", which are no two words", kRemedy);
      add_join(words, two ? pair[0].get<std::string>() + " " + pair[1].get<std::string>() : pair.get<std::string>(),
               where);
    }
    return words;
  }

  void add_join(const Words& words, std::string_view pair, const std::string& where) {
    const auto space = pair.find(' ');
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::config, where, "'" + shown(pair) + "' " + what, kRemedy);
    };
    if (space == pair.npos || pair.find(' ', space + 1) != pair.npos) refuse("is not two pieces with a space between");
    const std::string left(pair.substr(0, space)), right(pair.substr(space + 1));
    const auto id = [&](const std::string& piece) {
      const auto at = words.find(piece);
      if (at == words.end()) refuse("needs the piece '" + shown(piece) + "', which the vocabulary has not");
      return at->second;
    };
    const auto both = key(id(left), id(right));
    joins_.try_emplace(both, Join{static_cast<std::int64_t>(joins_.size()), id(left + right)});
  }

  static std::uint64_t key(std::int64_t left, std::int64_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }

  std::vector<std::int64_t> split(const std::string& text) const override {
    const auto characters = unicode::lower(unicode::characters(unicode::composed(text)));
    std::vector<std::int64_t> ids;
    for (std::u32string_view rest = characters; !rest.empty();) {
      const std::size_t length = unicode::is_space(rest[0]) ? 1 : word_length(rest);
      if (!unicode::is_space(rest[0])) add_word(unicode::text(rest.substr(0, length)), ids);
      rest.remove_prefix(length);
    }
    return ids;
  }

  // In time n log n, as a text may be one word of a hundred thousand bytes.
  void add_word(std::string_view word, std::vector<std::int64_t>& ids) const {
    struct Piece {
      std::int64_t id;
      std::size_t before, behind;  // neighbours; kNone: none
    };
    constexpr std::size_t kNone = ~std::size_t{0};
    std::vector<Piece> pieces(word.size());
    for (std::size_t i = 0; i < word.size(); ++i) {
      const bool last = i + 1 == word.size();
      pieces[i] = {(last ? last_bytes_ : bytes_)[static_cast<unsigned char>(word[i])], i - 1, last ? kNone : i + 1};
    }
    using Candidate =
        std::tuple<std::int64_t, std::size_t, std::uint64_t, std::int64_t>;  // rank, left, its pair, joined
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto offer = [&](std::size_t left) {
      if (left == kNone || pieces[left].behind == kNone) return;
      const auto pair = key(pieces[left].id, pieces[pieces[left].behind].id);
      if (const auto at = joins_.find(pair); at != joins_.end())
        queue.emplace(at->second.rank, left, pair, at->second.piece);
    };
    for (std::size_t i = 0; i < word.size(); ++i) offer(i);
    while (!queue.empty()) {
      const auto [rank, left, pair, joined] = queue.top();
      queue.pop();
      const std::size_t right = pieces[left].behind;
      if (pieces[left].id < 0 || right == kNone || key(pieces[left].id, pieces[right].id) != pair) continue;
      pieces[left] = {joined, pieces[left].before, pieces[right].behind};
      pieces[right].id = -1;
      if (pieces[left].behind != kNone) pieces[pieces[left].behind].before = left;
      offer(pieces[left].before);
      offer(left);
    }
    for (std::size_t i = 0; i != kNone; i = pieces[i].behind) ids.push_back(pieces[i].id);
  }

  std::unordered_map<std::uint64_t, Join> joins_;
  std::array<std::int64_t, 256> bytes_{}, last_bytes_{};
};

}  // namespace

std::unique_ptr<const Tokenizer> open_clip_tokenizer(const std::string& folder, const TokenOptions& options) {
  return std::make_unique<ClipTokenizer>(folder, options);
}

}  // namespace ditto::formats
