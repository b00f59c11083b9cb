// Tokenizers on vocabularies of a few words, where ids can be told by hand. (Against transformers:
// integration/text_ids.py.)
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/formats/tokenizers/tokenizer.h"
#include "core/formats/tokenizers/unicode.h"
#include "tests/support/files.h"

namespace {

using ditto::ErrorKind;
using ditto::formats::open_bert_tokenizer;
using ditto::formats::open_clip_tokenizer;
using ditto::formats::Tokenizer;
using ditto::test::error_of;
using ditto::test::TemporaryFolder;
using ditto::test::write_text;
namespace unicode = ditto::formats::unicode;

using Ids = std::vector<std::int64_t>;

// All bytes, and these joins: in the order of `pairs`, each a pair with a space between.
struct Clip {
  explicit Clip(const std::vector<std::string>& pairs) {
    auto words = nlohmann::json::object();
    const auto add = [&](const std::string& word) {
      if (!words.contains(word)) words.emplace(word, words.size());
    };
    for (const char* end : {"", "</w>"})
      for (char32_t letter = 0x21; letter < 0x144; ++letter) add(unicode::text(std::u32string(1, letter)) + end);
    first_join = static_cast<std::int64_t>(words.size());
    std::string merges = "#version: 0.2\n";
    for (const auto& pair : pairs) {
      merges += pair + "\n";
      add(pair.substr(0, pair.find(' ')) + pair.substr(pair.find(' ') + 1));
    }
    for (const char* word : {"<|startoftext|>", "<|endoftext|>"}) add(word);
    write_text(folder / "vocab.json", words.dump());
    write_text(folder / "merges.txt", merges);
    tokenizer = open_clip_tokenizer(folder.path().string(), {.tokens = 8});
  }
  // The join `number`, or a letter.
  std::int64_t join(std::int64_t number) const { return first_join + number; }
  std::int64_t letter(char c, bool last = false) const { return c - 0x21 + (last ? first_join / 2 : 0); }
  Ids pieces(const std::string& text) const { return tokenizer->pieces(text, "text"); }

  TemporaryFolder folder;
  std::int64_t first_join = 0;
  std::unique_ptr<const Tokenizer> tokenizer;
};

}  // namespace

TEST_CASE("of pairs that could be joined that one is which stands first in the list, and of equals the left one") {
  const Clip clip({"a a", "b c", "aa a</w>", "a b"});
  CHECK(clip.pieces("aaa") == Ids{clip.join(2)});  // by way of "aa"
  CHECK(clip.pieces("aaaa") == Ids{clip.join(0), clip.letter('a'), clip.letter('a', true)});
  CHECK(clip.pieces("abcx") == Ids{clip.letter('a'), clip.join(1), clip.letter('x', true)});  // "b c" before "a b"
  CHECK(clip.pieces("abx") == Ids{clip.join(3), clip.letter('x', true)});
}

TEST_CASE("CLIP's words are letters, single digits, signs and the ends of contractions, in lower case") {
  const Clip clip({});
  const auto last = [&](char c) { return clip.letter(c, true); };
  CHECK(clip.pieces(" A\tb\u3000") == Ids{last('a'), last('b')});
  CHECK(clip.pieces("12") == Ids{last('1'), last('2')});
  CHECK(clip.pieces("x's") == Ids{last('x'), clip.letter('\''), last('s')});
  CHECK(clip.pieces("x''s") == Ids{last('x'), clip.letter('\''), last('\''), last('s')});
  CHECK(clip.pieces("") == Ids{});
}

TEST_CASE("a row has begin, text, end and padding, and a longer text loses its end") {
  const Clip clip({});
  const auto& tokenizer = *clip.tokenizer;
  const auto short_one = tokenizer.row("a", "text"), long_one = tokenizer.row("a b c d e f g h", "text");
  CHECK(short_one.length == 3);
  CHECK(short_one.ids == Ids{*tokenizer.begin(), clip.letter('a', true), tokenizer.end(), tokenizer.pad(),
                             tokenizer.pad(), tokenizer.pad(), tokenizer.pad(), tokenizer.pad()});
  CHECK(long_one.length == 8);
  CHECK(long_one.ids[6] == clip.letter('f', true));
  CHECK(long_one.ids[7] == tokenizer.end());
  CHECK(error_of(ErrorKind::data, [&] { tokenizer.row("a\xC3", "a caption"); }) ==
        "a caption: is no UTF-8 at byte 1; save it as UTF-8");
}

TEST_CASE("BERT's words are cut into the longest pieces, or are unknown as a whole") {
  const TemporaryFolder folder;
  // ids:                                 0      1      2      3   4   5    6     7    8     9        10
  write_text(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nab\n##c\n##cd\n!\n\u4e2d\n\u00e9\n");
  const auto tokenizer = open_bert_tokenizer(folder.path().string(), {.tokens = 6});
  const auto pieces = [&](const std::string& text) { return tokenizer->pieces(text, "text"); };
  CHECK(pieces("ABCD a") == Ids{5, 7, 4});
  CHECK(pieces("abx") == Ids{1});
  CHECK(pieces("a!a") == Ids{4, 8, 4});
  CHECK(pieces("a\u4e2da") == Ids{4, 9, 4});       // an ideograph is a word
  CHECK(pieces("\u00c1\u200d\u0301b") == Ids{5});  // accents and hidden characters are left out
  CHECK(pieces(std::string(101, 'a')) == Ids{1});
  CHECK(tokenizer->row("a", "text").ids == Ids{2, 4, 3, 0, 0, 0});
}

TEST_CASE("cleaning makes single spaces, and CLIP's lower case and composed letters as well") {
  CHECK(unicode::single_spaced("\u3000 a \t\n b\u2003") == "a b");
  CHECK(unicode::composed("e\u0301") == "\u00e9");
  CHECK(unicode::text(unicode::lower(U"\u0130\u03a3A")) == "i\u0307\u03c3a");
}
