// Parts that diffusion transformers share, made of the layers of nn.h: each states how it may be cut.
//
// Legend: B samples, T tokens here, D width, N heads, M heads of keys and values, K = D / N head width, S tokens of
// text, E their width, P patch side, Q frames of a patch.
#pragma once

#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/options.h>

namespace ditto {

// Throws Error(config) unless patches of so many pixels (or frames) divide every side. Sides that are each sample's own
// (kOwnSide) are checked where their grid is made. `option` and `of` are for the message: "model.patch", "pictures of".
DITTO_API void check_patches(const std::string& option, int64_t patch, const std::string& of,
                             const std::vector<int64_t>& sides);
// Tokens of patches [Q, P, P] or [P, P] in sides, or -1 where the sides are each sample's own: for Model::makes.
DITTO_API int64_t count_patches(const std::vector<int64_t>& sides, const std::vector<int64_t>& patch);

// Width and heads of a transformer, as recipes give them.
struct DITTO_API AttentionOptions {
  int64_t width = 384, heads = 6;
  int64_t kv_heads = 0;  // M, each for N / M queries (arXiv:2305.13245); 0: N
  bool qk_norm = false;  // RMS norm of each head's queries and keys (arXiv:2302.05442)
  // A model's own, which no recipe sets.
  double norm_eps = 1e-6;  // of qk_norm
  int64_t text_width = 0;  // E, of what CrossAttention attends to; 0: D
  bool bias = true;        // of all maps

  void read(OptionReader& option);        // declares "width", "heads", "kv_heads" and "qk_norm"
  void read_width(OptionReader& option);  // the first two of these,
  void read_keys(OptionReader& option);   // and the other two
  int64_t head_width() const { return width / heads; }
  int64_t groups() const { return kv_heads == 0 ? heads : kv_heads; }
  // Of attention to text of that width, which has keys of every head.
  AttentionOptions to_text(int64_t text_width) const;
};

// Patches of Q frames of P x P pixels to tokens (frames x rows x columns) by one linear map, and back. Parameter map.
class DITTO_API VideoPatchEmbed : public Layer {
 public:
  // Where the channel is fastest in a patch's numbers, as it is in unpatchify, the weight is [D, Q*P*P*C].
  VideoPatchEmbed(int64_t channels, int64_t patch, int64_t frames, int64_t width, bool channel_fastest = false);
  ~VideoPatchEmbed() override;
  torch::Tensor forward(const torch::Tensor& x_BCFHW, Context& ctx);  // -> [B, T, D]
  Grid grid(const torch::Tensor& x_BCFHW) const;  // throws Error(shape) for what is not made of patches
  // [B, T, Q*P*P*C'] with the channel fastest -> [B, C', F, H, W].
  torch::Tensor unpatchify(const torch::Tensor& y, const Grid& grid) const;

 private:
  int64_t patch_, frames_;
  bool channel_fastest_;
  Linear map_;  // weight [D, C*Q*P*P]
};

// Attention of tokens among themselves. Parameters qkv, proj, and with qk_norm q_norm and k_norm.
class DITTO_API SelfAttention : public Layer {
 public:
  explicit SelfAttention(const AttentionOptions& options);
  SelfAttention(const AttentionOptions& options, Init proj);  // of proj's weight
  ~SelfAttention() override;
  // Queries and keys are turned by `rotary_TK`, where that is defined. [B, T, D] -> the same.
  torch::Tensor forward(const torch::Tensor& x_BTD, Pattern pattern, const torch::Tensor& rotary_TK,
                        const Stream& stream, Context& ctx);

 private:
  AttentionOptions options_;
  Linear qkv_, proj_;
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;
};

// Attention of tokens to the stream's text, under its mask. Parameters q, kv, proj, and with qk_norm q_norm and k_norm.
class DITTO_API CrossAttention : public Layer {
 public:
  explicit CrossAttention(const AttentionOptions& options);
  CrossAttention(const AttentionOptions& options, Init proj);
  ~CrossAttention() override;
  torch::Tensor forward(const torch::Tensor& x_BTD, const Stream& stream, Context& ctx);

 private:
  AttentionOptions options_;
  Linear q_, kv_, proj_;
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;
};

// down(GELU(up(x))), tanh form.
class DITTO_API Mlp : public Layer {
 public:
  Mlp(int64_t width, int64_t hidden);
  Mlp(int64_t width, int64_t hidden, Init down);  // of down's weight
  ~Mlp() override;
  torch::Tensor forward(const torch::Tensor& x_BTD, Context& ctx);

 private:
  Linear up_, down_;
};

// What a gated perceptron's gate goes through.
enum class Gate { silu, gelu, gelu_tanh };

// down(gate(x) * up(x)), gate and up as one map of 2 H outputs, the gate's first (N. Shazeer, 2020, arXiv:2002.05202).
// Parameters gate_up, down.
class DITTO_API GatedMlp : public Layer {
 public:
  GatedMlp(Gate gate, int64_t width, int64_t hidden);
  GatedMlp(Gate gate, int64_t width, int64_t hidden, Init down);  // of down's weight
  ~GatedMlp() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);

 private:
  Gate gate_;
  Linear gate_up_, down_;
};
class DITTO_API SwiGlu : public GatedMlp {
 public:
  SwiGlu(int64_t width, int64_t hidden) : GatedMlp(Gate::silu, width, hidden) {}
  ~SwiGlu() override;
};
class DITTO_API GeGlu : public GatedMlp {
 public:
  GeGlu(int64_t width, int64_t hidden) : GatedMlp(Gate::gelu, width, hidden) {}
  ~GeGlu() override;
};

// What stands for a text that was dropped.
enum class NullText {
  learned,  // one learned embedding of width E in the place of every token
  zero,     // zeros in the place of every token
  empty,    // the embedding of the empty text, which comes with the batch: "text_empty" and "text_empty_mask"
};
DITTO_API NullText null_text(const std::string& name);  // "learned", "zero" or "empty"

// Text embeddings to the model's width by a two-layer perceptron, as PixArt does (arXiv:2310.00426). A text whose mask
// is false everywhere is the null condition. Parameters null (where it is learned), in, out.
class DITTO_API TextEmbed : public Layer {
 public:
  // null_tokens: so many learned embeddings, of as many tokens, are what NullText::learned means; 0: one, in all
  // places.
  TextEmbed(int64_t text_width, int64_t width, NullText null = NullText::learned, int64_t null_tokens = 0);
  ~TextEmbed() override;
  // Reads "text" [B, S, E] and "text_mask" bool [B, S]; sets text_BSE [B, S, D] and text_mask_BS. An empty text that is
  // longer makes S its length.
  void forward(const Batch& batch, Conditioning& condition, Context& ctx);
  // What a model's takes() says of its text: any number of tokens.
  TensorSpecs takes() const;
  static Batch without_text(Batch batch, const torch::Tensor& which_B);

 private:
  int64_t text_width_, null_tokens_;
  NullText kind_;
  Parameter null_;  // [E], or [null_tokens, E]
  Linear in_, out_;
};

// Where shifts, scales and gates come from.
enum class AdaLn {
  zero,    // each block's own map of the condition, zero at first (adaLN-Zero, arXiv:2212.09748)
  single,  // one map for all blocks, and a learned table in each (adaLN-single, arXiv:2310.00426)
};
DITTO_API AdaLn adaln(const std::string& name);  // "zero" or "single"

// adaLN-single's one map, for the condition unit: cond [B, D] -> [B, (1 + 3 n) D], cond itself and then the n
// sub-layers' shifts, scales and gates: what a Conditioning then holds as cond_BD. Parameter map.
class DITTO_API SharedModulation : public Layer {
 public:
  SharedModulation(int64_t width, int64_t sublayers);
  ~SharedModulation() override;
  torch::Tensor forward(const torch::Tensor& cond_BD, Context& ctx);

 private:
  Linear map_;
};

// A block's shift, scale and gate [B, D] for each of n sub-layers. Parameter map, or table with adaLN-single.
class DITTO_API Modulation : public Layer {
 public:
  Modulation(AdaLn kind, int64_t width, int64_t sublayers);
  ~Modulation() override;
  struct Row {
    torch::Tensor shift, scale, gate;
  };
  std::vector<Row> forward(const Stream& stream, Context& ctx);

 private:
  int64_t width_, sublayers_;
  Parameter table_;  // [3 n, D]
  Linear map_;
};

// y * (1 + scale) + shift, of what a model's own norm made: rows [B, D] of the sample, or [B, F, D] of its frames, for
// all of `tokens`.
DITTO_API torch::Tensor scale_and_shift(const torch::Tensor& y, const torch::Tensor& shift, const torch::Tensor& scale,
                                        const Sequence& tokens, Context& ctx);

// A sub-layer of adaLN: x + gate * f(norm(x) * (1 + scale) + shift).
template <class F>
torch::Tensor modulated(const torch::Tensor& x_BTD, const Modulation::Row& row, const Stream& stream, Context& ctx,
                        const F& f) {
  const auto y = f(ctx.ops.norm_modulate(x_BTD, row.shift, row.scale, stream));
  return ctx.ops.gated_residual(x_BTD, row.gate, y, stream);
}

// The end of a model: norm, shift and scale, and a linear map that is zero at first. Parameters modulation (or table)
// and out.
class DITTO_API FinalLayer : public Layer {
 public:
  FinalLayer(AdaLn kind, int64_t width, int64_t out);
  ~FinalLayer() override;
  torch::Tensor forward(const Stream& stream, Context& ctx);  // -> [B, T, out]

 private:
  int64_t width_;
  Parameter table_;  // [2, D]
  Linear modulation_, out_;
};

}  // namespace ditto
