// Nothing is wrong with it: an encoder of captions that is nothing but a tokenizer. Of each piece the text has one
// number, its id as a part of the vocabulary.
#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/formats/tokenizer.h>

namespace {

using ditto::Batch;
using torch::Tensor;
namespace formats = ditto::formats;

struct PiecesOptions {
  std::string tokenizer, kind = "sentencepiece";
  int64_t tokens = 16;

  void read(ditto::OptionReader& option) {
    option("tokenizer", tokenizer, "folder of its files").place();
    option("kind", kind, "whose it is").one_of({"sentencepiece", "clip", "bert"});
    option("tokens", tokens, "places of a row").between(2, 512);
  }
};

struct PiecesText final : ditto::Encoder {
  using Options = PiecesOptions;
  PiecesText(const Options& o, const Needs&) : options(o) {
    const auto open = o.kind == "clip"   ? formats::open_clip_tokenizer
                      : o.kind == "bert" ? formats::open_bert_tokenizer
                                         : formats::open_sentencepiece_tokenizer;
    tokenizer = open(o.tokenizer, {.tokens = o.tokens});
  }

  ditto::TensorSpecs takes() const override { return {{"caption", torch::kByte, {-1}, "UTF-8"}}; }
  ditto::TensorSpecs makes() const override {
    return {{"text", torch::kFloat, {options.tokens, 1}, "0 … 1"}, {"text_mask", torch::kBool, {options.tokens}, ""}};
  }

  Batch encode(Batch batch, ditto::Context& ctx) const override {
    const Tensor caption = batch.at("caption").cpu().contiguous();
    const auto samples = caption.size(0), bytes = caption.size(1);
    auto text = torch::zeros({samples, options.tokens, 1});
    auto mask = torch::zeros({samples, options.tokens}, torch::kBool);
    for (int64_t i = 0; !caption.is_meta() && i < samples; ++i) {
      std::string one(reinterpret_cast<const char*>(caption.data_ptr<uint8_t>()) + i * bytes,
                      static_cast<size_t>(bytes));
      const auto row = tokenizer->row(one.substr(0, one.find('\0')), "caption");
      const auto ids = torch::tensor(row.ids, torch::kDouble) / static_cast<double>(tokenizer->vocabulary());
      text[i].copy_(ids.unsqueeze(-1));
      mask[i].narrow(0, 0, row.length).fill_(true);
    }
    batch["text"] = text.to(ctx.options());
    batch["text_mask"] = mask.to(ctx.device);
    batch.tensors.erase("caption");
    return batch;
  }
  std::optional<ditto::TokenRow> tokens(const std::string& text) const override { return tokenizer->row(text, "text"); }
  std::string fingerprint() const override { return "pieces_text 1, " + tokenizer->fingerprint(); }

  Options options;
  std::unique_ptr<const formats::Tokenizer> tokenizer;
};

}  // namespace

DITTO_PLUGIN(Encoder, PiecesText, "pieces_text", "1.0.0", "Apache-2.0", "captions as the ids of their pieces")
