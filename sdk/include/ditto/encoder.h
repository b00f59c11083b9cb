// Between data and what a model trains on: pixels and latents, text and embeddings.
//
// A batch goes through a recipe's encoders in their order, each in two calls:
//   precompute   takes()  -> caches()   The costly part. It draws nothing, so that what it made may be kept.
//   encode       caches() -> makes()    The rest, at every step: it may draw, and sees the phase.
// The host calls the second right after the first, or with what was kept of it, in the dtypes that the specs say (fp64
// in an fp64 run). Around them it takes away: after precompute what the encoder takes, but texts (uint8 [B, S]), which
// stay for the encoders behind it and go after the last that takes them; after encode what is cached and not made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/nn/attention_unit.h>
#include <ditto/plugin.h>
#include <ditto/tokens.h>
#include <ditto/units.h>

namespace ditto {

// A plain function of a batch, or a frozen network: its parameters are made in units, as a model's, come from another
// project's file by their own names or as foreign(format) says, or from a run of Ditto's that trained the model of the
// same id, and are used inside of ctx.in_unit(…) alone. So it is cut over ranks as a model is. The units of precompute
// stand before those that decode alone uses.
//
// Its class may have, as a model's (plugin.h):
//   static Needs foreign_needs(OptionReader&, const ForeignShapes&)   reads Options over what the file of weights and
//       the config.json beside it say, and refuses a recipe that says otherwise with both values; returns {}: the host
//       knows what there is to encode. Called before the encoder is made, where the file is there.
//   static std::vector<std::string> foreign_classes()   by which the weights' folder is found in a pipeline's: what
//       "_class_name" or "architectures" of a config.json says ("AutoencoderKL")
// Of a run's model the host gives it every option that both declare by one name, and refuses a recipe that says
// otherwise.
//
// All calls are const: they keep nothing for the next one, in members or elsewhere. They come from one thread at a
// time, not always the same one, which may be another than the thread that trains.
class DITTO_API Encoder : public Units {
 public:
  static constexpr const char* kKind = "encoder";
  static constexpr std::uint32_t kAbi = 12;
  struct Needs {
    TensorSpecs inputs;  // what there is when it encodes: of the data, and of the encoders before it
    // The folder that its weights lie in, where a tokenizer may lie beside them; empty: it has none.
    std::string folder = {};
    // It will encode. false: it is made for its shapes and specs alone (a dry run), and opens no file: what the recipe
    // names may not be there.
    bool opens_files = true;
  };
  Encoder();
  ~Encoder() override;
  virtual TensorSpecs takes() const = 0;
  // Of each sample what precompute makes and encode needs: an autoencoder's moments, a text's embeddings. In names that
  // nobody else makes. Default: all that it makes.
  virtual TensorSpecs caches() const { return makes(); }
  // "clean" of "image", "text" and "text_mask" of "caption". Of what it makes of texts alone, or of what other encoders
  // made of texts alone, the host makes that of the empty text too, once a run, for models that take it: "text_empty",
  // "text_empty_mask", "text_pooled_empty", the same for all samples. The encoder does nothing for it.
  virtual TensorSpecs makes() const = 0;

  // Both: without gradients, on ctx.device, where all tensors of the batch lie but texts. Samples' ids and weights
  // stay. Ranks that share its parts call them together. Attention is ctx.attention's, with a Stream of the encoder's
  // own. Of a text that is made, Batch::lengths is set, whose mask it agrees with. Behind a tokenizer no number of a
  // tensor is read on the host.
  //
  // ctx.phase is evaluate, whatever the batch is for, and ctx.random is not used.
  virtual Batch precompute(Batch batch, Context& ctx) const = 0;
  // Of a batch with caches(), and without what precompute took. ctx.phase is what the batch is for: train, evaluate (a
  // validation) or sample. A draw is ctx.random's with Purpose::encoding and batch.ids, which is keyed by the run's
  // seed and the encoder's name in the recipe: two of one plugin draw other numbers, two epochs have other ids.
  // Default: as it is.
  virtual Batch encode(Batch batch, Context& ctx) const;

  // The way back of "clean", to pictures or videos [B, C, …] in -1 … 1; ctx.phase is evaluate. Of several encoders that
  // of the one which makes "clean" is used. Default: refused by name.
  virtual bool decodes() const { return false; }
  virtual torch::Tensor decode(const torch::Tensor& clean, Context& ctx) const;
  // What its network sees of a text, for `ditto tokenize`. Default: nothing, as it is no encoder of texts that has a
  // vocabulary. Throws Error(data) "text: …" for one that is no UTF-8.
  virtual std::optional<TokenRow> tokens(const std::string& /*text*/) const { return std::nullopt; }
  // What decode makes of one sample of "clean" of this shape, [C, H, W] or [C, F, H, W], by arithmetic alone. Default:
  // a picture of the same shape.
  virtual std::vector<int64_t> decoded(const std::vector<int64_t>& clean) const { return clean; }
  // Equal fingerprints precompute alike, with equal weights (whose hash the host adds): its name and version, the
  // options that precompute reads, and of files that it reads (a tokenizer) the hash, not the place. The key of what is
  // kept.
  virtual std::string fingerprint() const = 0;
};

}  // namespace ditto
