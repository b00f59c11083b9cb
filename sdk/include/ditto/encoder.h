// Between data and what a model trains on: pixels and latents, text and embeddings.
#pragma once

#include <optional>
#include <string>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/nn/attention_unit.h>
#include <ditto/plugin.h>
#include <ditto/tokens.h>
#include <ditto/units.h>

namespace ditto {

// A plain function of a batch, or a frozen network: its parameters are made in units, as a model's, come from another
// project's file by their own names or as foreign(format) says, and are used inside of ctx.in_unit(…) alone. So it is
// cut over ranks as a model is. The units of encode stand before those that decode alone uses.
class DITTO_API Encoder : public Units {
 public:
  static constexpr const char* kKind = "encoder";
  static constexpr std::uint32_t kAbi = 9;
  struct Needs {
    TensorSpecs inputs;  // what there is when it encodes: of the data, and of the encoders before it
  };
  Encoder();
  ~Encoder() override;
  virtual TensorSpecs takes() const = 0;
  // What it makes, in the place of what it takes: "clean" of "image", "text" and "text_mask" of "caption".
  virtual TensorSpecs makes() const = 0;
  // Without gradients, on the context's device. Ranks that share its parts call it together. Attention is
  // ctx.attention's, with a Stream of the encoder's own.
  virtual Batch encode(Batch batch, Context& ctx) const = 0;
  // The way back of "clean", to pictures or videos [B, C, …] in -1 … 1. Default: refused by name.
  virtual bool decodes() const { return false; }
  virtual torch::Tensor decode(const torch::Tensor& clean, Context& ctx) const;
  // What its network sees of a text, for `ditto tokenize`. Default: nothing, as it is no encoder of texts that has a
  // vocabulary. Throws Error(data) "text: …" for one that is no UTF-8.
  virtual std::optional<TokenRow> tokens(const std::string& /*text*/) const { return std::nullopt; }
  // Equal fingerprints encode alike: the key of a cache.
  virtual std::string fingerprint() const = 0;
};

}  // namespace ditto
