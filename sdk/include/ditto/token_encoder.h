// Encoders with a vocabulary: a tokenizer makes a row of tokens of each text, and a network an embedding of each of
// them.
//
// Legend: B samples, S places of a row, E width of an embedding, P width of the pooled text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/encoder.h>
#include <ditto/text_encoder.h>
#include <ditto/tokens.h>

namespace ditto {

// Their options.
struct DITTO_API TextTokens : TextNames {
  int64_t tokens = 77;         // S
  std::string tokenizer;       // folder of its files; empty: see tokenizer_folder
  std::string pad;             // the word that fills a row; empty: the tokenizer's own
  std::string clean = "none";  // or "whitespace", "clip": ditto/formats/tokenizer.h says what they are
  bool zero_padding = false;   // embeddings beyond the text are zeros

  // Declares "takes", "name", "tokens", "tokenizer", "pad", "clean" and "zero_padding".
  void read(OptionReader& option);
};

// A batch's texts as a network sees them.
struct TextRows {
  std::vector<TokenRow> rows;
  torch::Tensor ids_BS;          // int64, where the network computes
  torch::Tensor mask_BS;         // bool
  std::vector<int64_t> lengths;  // of the rows
};

// The base of such an encoder. Its constructor opens a tokenizer, where it may open files, and hands it to `use`.
class DITTO_API TokenEncoder : public Encoder {
 public:
  ~TokenEncoder() override;
  TensorSpecs takes() const final { return {taken_}; }
  TensorSpecs makes() const final;
  Batch precompute(Batch batch, Context& ctx) const final;
  std::optional<TokenRow> tokens(const std::string& text) const final;
  std::string fingerprint() const final;

 protected:
  struct Embedded {
    torch::Tensor text_BSE;
    torch::Tensor pooled_BP = {};  // where it pools
  };
  struct Widths {
    int64_t text, pooled = 0;  // E; P, 0: it does not pool
  };
  // `numbers`: its name and version, and its options that the embeddings depend on, for the fingerprint. Throws
  // Error(config) where the inputs have no such text.
  TokenEncoder(const TextTokens& options, const Needs& needs, Widths widths, std::string numbers);

  virtual Embedded embed(const TextRows& text, Context& ctx) const = 0;

  struct Tokenizer {
    std::function<TokenRow(const std::string& text, const std::string& where)> row;  // for any number of threads
    std::string fingerprint;
  };
  void use(Tokenizer tokenizer) { tokenizer_ = std::move(tokenizer); }
  // The folder that the recipe names; or that of the weights, where a tokenizer lies in it, else its folder
  // "tokenizer", else, as pipelines have it, "tokenizer_2" beside a folder of weights "text_encoder_2". Throws
  // Error(config) where there is none.
  std::string tokenizer_folder(const Needs& needs) const;

 private:
  TextTokens options_;
  TensorSpec taken_;
  Widths widths_;
  std::string numbers_;
  Tokenizer tokenizer_;  // without a row: no file may be opened
};

}  // namespace ditto
