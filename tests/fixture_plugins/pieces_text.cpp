// Nothing is wrong with it: an encoder of captions that is nothing but a tokenizer. Of each piece the text has one
// number, its id as a part of the vocabulary.
#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/formats/tokenizer.h>
#include <ditto/text_encoder.h>

namespace {

using ditto::Batch;
using torch::Tensor;
namespace formats = ditto::formats;

struct PiecesOptions {
  std::string tokenizer, kind = "sentencepiece";
  int64_t tokens = 16;
  ditto::TextNames names;

  void read(ditto::OptionReader& option) {
    names.read(option);
    option("tokenizer", tokenizer, "folder of its files").place();
    option("kind", kind, "whose it is").one_of({"sentencepiece", "clip", "bert"});
    option("tokens", tokens, "places of a row").between(2, 512);
  }
};

struct PiecesText final : ditto::Encoder {
  using Options = PiecesOptions;
  PiecesText(const Options& o, const Needs& needs) : options(o), caption(o.names.taken(needs.inputs)) {
    if (!needs.opens_files) return;
    const auto open = o.kind == "clip"   ? formats::open_clip_tokenizer
                      : o.kind == "bert" ? formats::open_bert_tokenizer
                                         : formats::open_sentencepiece_tokenizer;
    tokenizer = open(o.tokenizer, {.tokens = o.tokens});
  }

  ditto::TensorSpecs takes() const override { return {caption}; }
  ditto::TensorSpecs makes() const override { return options.names.made(options.tokens, 1); }

  Batch precompute(Batch batch, ditto::Context& ctx) const override {
    auto text = torch::zeros({batch.at(caption.name).size(0), options.tokens, 1});
    std::vector<int64_t> lengths;
    if (tokenizer)
      for (const auto& one : options.names.texts(batch)) {
        const auto row = tokenizer->row(one, "caption");
        const auto ids = torch::tensor(row.ids, torch::kDouble) / static_cast<double>(tokenizer->vocabulary());
        text[static_cast<int64_t>(lengths.size())].copy_(ids.unsqueeze(-1));
        lengths.push_back(row.length);
      }
    lengths.resize(static_cast<size_t>(text.size(0)), options.tokens);  // of shapes alone
    options.names.put(batch, text.to(ctx.options()), std::move(lengths));
    return batch;
  }
  std::optional<ditto::TokenRow> tokens(const std::string& text) const override {
    if (!tokenizer) return std::nullopt;
    return tokenizer->row(text, "text");
  }
  std::string fingerprint() const override { return "pieces_text 1, " + (tokenizer ? tokenizer->fingerprint() : ""); }

  Options options;
  ditto::TensorSpec caption;
  std::unique_ptr<const formats::Tokenizer> tokenizer;
};

}  // namespace

DITTO_PLUGIN(Encoder, PiecesText, "pieces_text", "1.0.0", "Apache-2.0", "captions as the ids of their pieces")
