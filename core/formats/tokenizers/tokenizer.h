// Texts as a text encoder sees them: rows of whole numbers, each the place of a piece of text in the encoder's
// vocabulary. open_clip_tokenizer and open_bert_tokenizer are of Ditto::formats, open_sentencepiece_tokenizer is of
// Ditto::tokenizers. A special word that a text spells ("<|endoftext|>", "[SEP]", "</s>") is text like any other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ditto/error.h>
#include <ditto/tokens.h>

namespace ditto::formats {

class VocabularyFiles;

// What is made of a text before its pieces are looked for.
enum class Cleaning {
  none,
  whitespace,  // each run of white space is one space, and none is before or behind
  clip,        // that, in normal form C and lower case, as CLIP's own tokenizer begins
};

Cleaning cleaning_of(std::string_view name);  // "none", "whitespace" or "clip"

struct TokenOptions {
  std::int64_t tokens = 77;  // places of a row: a longer text loses its end, a shorter one is padded
  Cleaning cleaning = Cleaning::none;
  std::optional<std::string> pad;  // the word that fills a row; default: what the folder says, else the tokenizer's own
};

// For any number of threads.
class Tokenizer {
 public:
  virtual ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Of TokenOptions::tokens places. Throws Error(data) "WHERE: …" for a text that is no UTF-8.
  TokenRow row(std::string_view text, std::string_view where) const;
  // The whole text's pieces alone, cleaned as a row's, of which row() keeps the first.
  std::vector<std::int64_t> pieces(std::string_view text, std::string_view where) const;

  std::int64_t vocabulary() const { return vocabulary_; }  // ids are below it
  std::optional<std::int64_t> begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t pad() const { return pad_; }
  const TokenOptions& options() const { return options_; }

  // Error(config) "WHERE: …" unless the table of embeddings with so many rows can be of this vocabulary. Tables may
  // have 255 rows to spare (T5: 100 words for its training, then up to a multiple of 128).
  void require_table(std::int64_t rows, std::string_view where) const;
  // SHA-256 over what `sha256sum` prints of the files that it was read from: equal ones make the same pieces.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  // The settings that name a special word, each with the word where they do not.
  struct SpecialWords {
    std::pair<const char*, const char*> begin, end, pad;  // begin: {} where a text has none
  };
  using Find = std::function<std::optional<std::int64_t>(const std::string& word)>;  // its id

  // `size` pieces. Error(config) for a special word that is none of them, for an added word that is none, and for rows
  // without a place for text.
  Tokenizer(const std::string& folder, const TokenOptions& options) : folder_(folder), options_(options) {}
  void set_up(const VocabularyFiles& files, const Find& find, const SpecialWords& words, std::int64_t size);
  virtual std::vector<std::int64_t> split(const std::string& text) const = 0;  // of UTF-8

 private:
  std::string folder_, fingerprint_;
  TokenOptions options_;
  std::int64_t vocabulary_ = 0, end_ = 0, pad_ = 0;
  std::optional<std::int64_t> begin_;
};

// Each throws Error(config) naming what of FOLDER is missing, damaged, or of another kind of tokenizer.

// CLIP's pairs of bytes: vocab.json and merges.txt, or a tokenizer.json that holds them.
std::unique_ptr<const Tokenizer> open_clip_tokenizer(const std::string& folder, const TokenOptions& options);
// BERT's pieces of words: vocab.txt with what tokenizer_config.json says of it, or a tokenizer.json that holds them.
std::unique_ptr<const Tokenizer> open_bert_tokenizer(const std::string& folder, const TokenOptions& options);
// A model of SentencePiece (T5, UMT5): spiece.model. A tokenizer.json has not what its normaliser needs.
std::unique_ptr<const Tokenizer> open_sentencepiece_tokenizer(const std::string& folder, const TokenOptions& options);

}  // namespace ditto::formats
