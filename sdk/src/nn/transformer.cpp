#include <ditto/nn/transformer.h>

#include <algorithm>
#include <cmath>

#include <torch/types.h>

#include <ditto/math/sizes.h>

namespace ditto {

using torch::Tensor;

namespace {

// "6 or 8": the divisors of `whole` nearest to the number asked for.
std::string nearest_divisors(int64_t whole, int64_t asked) {
  int64_t below = std::min(asked, whole), above = below;
  while (whole % below != 0) --below;
  while (whole % above != 0) ++above;
  return std::to_string(below) + (above == below ? "" : " or " + std::to_string(above));
}

Split query_key_value(const AttentionOptions& o) {
  return Split::heads({o.heads, o.groups(), o.groups()}, o.head_width());
}

double number(int64_t count) { return static_cast<double>(count); }

std::optional<Init> bias_of(const AttentionOptions& o) { return o.bias ? std::optional(Init::zeros()) : kNoBias; }

int64_t text_width(const AttentionOptions& o) { return o.text_width == 0 ? o.width : o.text_width; }

}  // namespace

void AttentionOptions::read(OptionReader& option) {
  read_width(option);
  read_keys(option);
}

void AttentionOptions::read_width(OptionReader& option) {
  option("width", width, "token width D").between(4, most::kWidth);
  option("heads", heads, "attention heads N; must divide the width").between(1, most::kHeads);
  if (width % heads != 0)
    option.reject("heads", "= " + std::to_string(heads) + " does not divide model.width = " + std::to_string(width),
                  "use " + nearest_divisors(width, heads));
}

void AttentionOptions::read_keys(OptionReader& option) {
  option("kv_heads", kv_heads, "heads of keys and values, each for heads / kv_heads queries; 0: as many as heads")
      .between(0, most::kHeads);
  if (heads % groups() != 0)
    option.reject("kv_heads",
                  "= " + std::to_string(kv_heads) + " does not divide model.heads = " + std::to_string(heads),
                  "use " + nearest_divisors(heads, kv_heads));
  option("qk_norm", qk_norm, "RMS norm of each head's queries and keys");
}

AttentionOptions AttentionOptions::to_text(int64_t width_of_text) const {
  auto options = *this;
  options.kv_heads = 0, options.text_width = width_of_text;
  return options;
}

void check_patches(const std::string& option, int64_t patch, const std::string& of, const std::vector<int64_t>& sides) {
  std::string text;
  bool divides = true;
  for (const int64_t side : sides) {
    divides = divides && (side == kOwnSide || side % patch == 0);
    text += (text.empty() ? "" : " x ") + std::to_string(side);
  }
  if (divides) return;
  throw Error(ErrorKind::config, option, std::to_string(patch) + " does not divide " + of + " " + text,
              "choose a patch that divides " + std::string(sides.size() == 1 ? "them" : "both sides"));
}

int64_t count_patches(const std::vector<int64_t>& sides, const std::vector<int64_t>& patch) {
  int64_t tokens = 1;
  for (size_t i = 0; i < sides.size(); ++i) {
    if (sides[i] == kOwnSide) return -1;
    tokens *= sides[i] / patch[i];
  }
  return tokens;
}

VideoPatchEmbed::VideoPatchEmbed(int64_t channels, int64_t patch, int64_t frames, int64_t width, bool channel_fastest)
    : patch_(patch),
      frames_(frames),
      channel_fastest_(channel_fastest),
      map_(linear("map", channels * frames * patch * patch, width)) {}
VideoPatchEmbed::~VideoPatchEmbed() = default;

Grid VideoPatchEmbed::grid(const Tensor& x_BCFHW) const {
  const int64_t f = x_BCFHW.size(2), h = x_BCFHW.size(3), w = x_BCFHW.size(4);
  if (f % frames_ != 0 || h % patch_ != 0 || w % patch_ != 0)
    throw Error(ErrorKind::shape, "patches of video",
                std::to_string(f) + " frames of " + std::to_string(h) + " x " + std::to_string(w) +
                    " are not made of patches of " + std::to_string(frames_) + " frames of side " +
                    std::to_string(patch_),
                "choose a patch that divides all three");
  return {f / frames_, h / patch_, w / patch_};
}

Tensor VideoPatchEmbed::forward(const Tensor& x_BCFHW, Context& ctx) {
  const Grid g = grid(x_BCFHW);
  const auto patches = x_BCFHW.unflatten(4, {g.columns, patch_})
                           .unflatten(3, {g.rows, patch_})
                           .unflatten(2, {g.frames, frames_});  // B C frames Q rows P columns P
  const auto tokens =
      channel_fastest_ ? patches.permute({0, 2, 4, 6, 3, 5, 7, 1}) : patches.permute({0, 2, 4, 6, 1, 3, 5, 7});
  return map_(tokens.flatten(4).flatten(1, 3), ctx);
}

Tensor VideoPatchEmbed::unpatchify(const Tensor& y, const Grid& g) const {
  const auto patches = y.unflatten(2, {frames_, patch_, patch_, -1})
                           .unflatten(1, {g.frames, g.rows, g.columns});  // B frames rows columns Q P P C
  return patches.permute({0, 7, 1, 4, 2, 5, 3, 6}).flatten(6).flatten(4, 5).flatten(2, 3);
}

SelfAttention::SelfAttention(const AttentionOptions& o) : SelfAttention(o, Init::xavier(o.width, o.width)) {}
SelfAttention::SelfAttention(const AttentionOptions& o, Init proj)
    : options_(o),
      qkv_(linear("qkv", o.width, (o.heads + 2 * o.groups()) * o.head_width(), query_key_value(o),
                  Init::xavier(o.width, (o.heads + 2 * o.groups()) * o.head_width()), bias_of(o))),
      proj_(linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()), proj, bias_of(o))) {
  if (!o.qk_norm) return;
  q_norm_ = register_module("q_norm", std::make_shared<RmsNorm>(o.head_width(), o.norm_eps));
  k_norm_ = register_module("k_norm", std::make_shared<RmsNorm>(o.head_width(), o.norm_eps));
}
SelfAttention::~SelfAttention() = default;

Tensor SelfAttention::forward(const Tensor& x_BTD, Pattern pattern, const Tensor& rotary_TK, const Stream& stream,
                              Context& ctx) {
  const int64_t each = options_.heads / options_.groups();  // queries of a key
  return ctx.attention_unit(qkv_, proj_, x_BTD, [&](const Tensor& x) {
    const auto heads = qkv_(x, ctx).unflatten(-1, {-1, options_.head_width()});  // those that are here
    const int64_t here = heads.size(-2) / (each + 2);
    const auto qkv = heads.split_with_sizes({each * here, here, here}, -2);
    auto q = q_norm_ ? q_norm_->of_heads(qkv[0], *qkv_, ctx, ctx.ops.inside()) : qkv[0];
    auto k = k_norm_ ? k_norm_->of_heads(qkv[1], *qkv_, ctx, ctx.ops.inside()) : qkv[1];
    if (rotary_TK.defined()) q = apply_rotary(q, rotary_TK), k = apply_rotary(k, rotary_TK);
    const auto y = ctx.attention(q, k, qkv[2], pattern, stream);
    return proj_(y.flatten(-2), ctx);
  });
}

CrossAttention::CrossAttention(const AttentionOptions& o) : CrossAttention(o, Init::xavier(o.width, o.width)) {}
CrossAttention::CrossAttention(const AttentionOptions& o, Init proj)
    : options_(o),
      q_(linear("q", o.width, o.width, Split::heads({o.heads}, o.head_width()), Init::xavier(o.width, o.width),
                bias_of(o))),
      kv_(linear("kv", text_width(o), 2 * o.groups() * o.head_width(),
                 Split::heads({o.groups(), o.groups()}, o.head_width()).of_condition(),
                 Init::xavier(text_width(o), 2 * o.groups() * o.head_width()), bias_of(o))),
      proj_(linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()), proj, bias_of(o))) {
  if (!o.qk_norm) return;
  q_norm_ = register_module("q_norm", std::make_shared<RmsNorm>(o.head_width(), o.norm_eps));
  k_norm_ = register_module("k_norm", std::make_shared<RmsNorm>(o.head_width(), o.norm_eps));
}
CrossAttention::~CrossAttention() = default;

Tensor CrossAttention::forward(const Tensor& x_BTD, const Stream& stream, Context& ctx) {
  auto q = q_(x_BTD, ctx).unflatten(-1, {-1, options_.head_width()});
  const auto kv = kv_(stream.condition.text_BSE, ctx).unflatten(-1, {2, -1, options_.head_width()}).unbind(-3);
  if (q_norm_) q = q_norm_->of_heads(q, *q_, ctx, ctx.ops.inside());
  const auto k = k_norm_ ? k_norm_->of_heads(kv[0], *kv_, ctx, ctx.ops.of_condition()) : kv[0];
  const auto y = ctx.attention(q, k, kv[1], Pattern::cross, stream);
  return proj_(y.flatten(-2), ctx);
}

Mlp::Mlp(int64_t width, int64_t hidden) : Mlp(width, hidden, Init::xavier(hidden, width)) {}
Mlp::Mlp(int64_t width, int64_t hidden, Init down)
    : up_(linear("up", width, hidden, Split::columns({hidden}))),
      down_(linear("down", hidden, width, Split::rows(), down)) {}
Mlp::~Mlp() = default;

Tensor Mlp::forward(const Tensor& x_BTD, Context& ctx) { return ctx.ops.mlp_gelu_tanh(x_BTD, up_, down_, ctx); }

GatedMlp::GatedMlp(Gate gate, int64_t width, int64_t hidden)
    : GatedMlp(gate, width, hidden, Init::xavier(hidden, width)) {}
GatedMlp::GatedMlp(Gate gate, int64_t width, int64_t hidden, Init down)
    : gate_(gate),
      gate_up_(linear("gate_up", width, 2 * hidden, Split::columns({hidden, hidden}), Init::xavier(width, hidden))),
      down_(linear("down", hidden, width, Split::rows(), down)) {}
GatedMlp::~GatedMlp() = default;
SwiGlu::~SwiGlu() = default;
GeGlu::~GeGlu() = default;

Tensor GatedMlp::forward(const Tensor& x, Context& ctx) {
  const auto both = gate_up_(x, ctx).chunk(2, -1);  // of each what is here
  const auto gate = gate_ == Gate::silu ? ctx.ops.silu(both[0]) : ctx.ops.gelu(both[0], gate_ == Gate::gelu_tanh);
  return down_(gate * both[1], ctx);
}

NullText null_text(const std::string& name) {
  if (name == "learned") return NullText::learned;
  if (name == "zero") return NullText::zero;
  if (name == "empty") return NullText::empty;
  throw Error(ErrorKind::config, "null text \"" + name + "\"", "is not defined",
              "use \"learned\", \"zero\" or \"empty\"");
}

TextEmbed::TextEmbed(int64_t text_width, int64_t width, NullText null, int64_t null_tokens)
    : text_width_(text_width),
      null_tokens_(null == NullText::learned ? null_tokens : 0),
      kind_(null),
      null_(null != NullText::learned
                ? Parameter()
                : parameter("null",
                            null_tokens == 0 ? std::vector<int64_t>{text_width} : std::vector{null_tokens, text_width},
                            Init::normal(1 / std::sqrt(number(text_width))))),
      in_(linear("in", text_width, width, {}, Init::normal(0.02))),
      out_(linear("out", width, width, {}, Init::normal(0.02))) {}
TextEmbed::~TextEmbed() = default;

namespace {

// The same with more tokens after the last: zeros, or false.
Tensor with_tokens(const Tensor& x, int64_t tokens) {
  std::vector<int64_t> pad(static_cast<size_t>(2 * x.dim()), 0);
  pad[static_cast<size_t>(2 * (x.dim() - 2) + 1)] = tokens - x.size(1);
  return tokens == x.size(1) ? x : torch::constant_pad_nd(x, pad);
}

// Of each row the tokens that may count, as far as the host knows: it does not know which texts were dropped, so a
// dropped one has its own number of null tokens, or what the longer of the two takes. One at least.
std::vector<int64_t> key_lengths(const Batch& batch, NullText kind, int64_t null_tokens, int64_t tokens) {
  const auto known = batch.lengths.find("text"), empty = batch.lengths.find("text_empty");
  if (known == batch.lengths.end() || (kind == NullText::empty && empty == batch.lengths.end())) return {};
  auto lengths = known->second;
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = std::clamp<int64_t>(std::max(lengths[i], kind == NullText::empty ? empty->second.at(i) : null_tokens),
                                     1, tokens);
  return lengths;
}

}  // namespace

void TextEmbed::forward(const Batch& batch, Conditioning& condition, Context& ctx) {
  // Not logical_not and its like: they have no kernel for tensors of shapes alone.
  auto mask_BS = batch.at("text_mask");
  const auto is_null_B1 = mask_BS.any(1, /*keepdim=*/true).bitwise_not();
  auto text_BSE = batch.at("text").to(ctx.compute);
  auto null = kind_ == NullText::learned ? null_(ctx) : torch::zeros({1}, text_BSE.options());
  const bool has_own_tokens = kind_ == NullText::empty || null_tokens_ > 0;
  if (has_own_tokens) {
    const int64_t B = text_BSE.size(0);
    const auto empty_BSE = null_tokens_ > 0
                               ? ctx.ops.add_row(torch::zeros({B, null_tokens_, text_width_}, text_BSE.options()), null)
                               : batch.at("text_empty").to(ctx.compute);
    const int64_t tokens = std::max(text_BSE.size(1), empty_BSE.size(1));
    null = with_tokens(empty_BSE, tokens), text_BSE = with_tokens(text_BSE, tokens);
    const auto empty_BS = with_tokens(
        null_tokens_ > 0 ? torch::ones({B, null_tokens_}, mask_BS.options()) : batch.at("text_empty_mask"), tokens);
    mask_BS = with_tokens(mask_BS, tokens).bitwise_or(empty_BS.bitwise_and(is_null_B1));
  }
  const bool in_leaves = ctx.token_leaf > 0;
  if (in_leaves && kind_ == NullText::learned && !has_own_tokens)
    null = ctx.ops.add_row(torch::zeros_like(text_BSE), null);
  text_BSE = torch::where(is_null_B1.unsqueeze(-1), null, text_BSE);
  condition.text_BSE = out_(ctx.ops.gelu(in_(text_BSE, ctx)), ctx);
  // Attention to nothing is undefined. In leaves a text that stands alike in every place has one: how many places there
  // are, another sample of the micro-batch says.
  const auto is_nothing_B1 = mask_BS.any(1, /*keepdim=*/true).bitwise_not();
  condition.text_mask_BS = mask_BS.bitwise_or(in_leaves ? with_tokens(is_nothing_B1, mask_BS.size(1)) : is_nothing_B1);
  condition.text_lengths = key_lengths(batch, kind_, null_tokens_, text_BSE.size(1));
}

TensorSpecs TextEmbed::takes() const {
  TensorSpecs specs{{"text", torch::kFloat, {-1, text_width_}, "embeddings of a text's tokens"},
                    {"text_mask", torch::kBool, {-1}, "true where there is text; nowhere: the null condition"}};
  if (kind_ != NullText::empty) return specs;
  specs.push_back({"text_empty", torch::kFloat, {-1, text_width_}, "embeddings of the empty text's tokens"});
  specs.push_back({"text_empty_mask", torch::kBool, {-1}, "true where they are"});
  return specs;
}

Batch TextEmbed::without_text(Batch batch, const Tensor& which_B) {
  batch["text_mask"] = batch.at("text_mask").logical_and(which_B.logical_not().unsqueeze(1));
  return batch;
}

AdaLn adaln(const std::string& name) {
  if (name == "zero") return AdaLn::zero;
  if (name == "single") return AdaLn::single;
  throw Error(ErrorKind::config, "adaLN \"" + name + "\"", "is not defined", "use \"zero\" or \"single\"");
}

SharedModulation::SharedModulation(int64_t width, int64_t sublayers)
    : map_(linear("map", width, 3 * sublayers * width, Split::columns({3 * sublayers * width}).gathered(),
                  Init::normal(0.02))) {}
SharedModulation::~SharedModulation() = default;

Tensor SharedModulation::forward(const Tensor& cond_BD, Context& ctx) {
  return torch::cat({cond_BD, map_(ctx.ops.silu(cond_BD), ctx)}, -1);
}

Modulation::Modulation(AdaLn kind, int64_t width, int64_t sublayers) : width_(width), sublayers_(sublayers) {
  const int64_t all = 3 * sublayers * width;
  if (kind == AdaLn::single)
    table_ = parameter("table", {3 * sublayers, width}, Init::normal(1 / std::sqrt(number(width))));
  else
    map_ = zero_linear("map", width, all, Split::columns({all}).gathered());
}
Modulation::~Modulation() = default;

std::vector<Modulation::Row> Modulation::forward(const Stream& stream, Context& ctx) {
  const auto& cond = stream.condition.cond_BD;
  const auto all = table_.defined() ? ctx.ops.of_condition().add_row(cond.slice(-1, width_), table_(ctx).flatten())
                                    : map_(ctx.ops.silu(cond), ctx);
  const auto parts = all.chunk(3 * sublayers_, -1);
  std::vector<Row> rows;
  for (size_t i = 0; i < parts.size(); i += 3) rows.push_back({parts[i], parts[i + 1], parts[i + 2]});
  return rows;
}

Tensor scale_and_shift(const Tensor& y, const Tensor& shift, const Tensor& scale, const Sequence& tokens,
                       Context& ctx) {
  return ctx.ops.gated_residual(ctx.ops.gated_residual(y, scale, y, tokens), shift, torch::ones_like(y), tokens);
}

FinalLayer::FinalLayer(AdaLn kind, int64_t width, int64_t out) : width_(width) {
  if (kind == AdaLn::single)
    table_ = parameter("table", {2, width}, Init::normal(1 / std::sqrt(number(width))));
  else
    modulation_ = zero_linear("modulation", width, 2 * width, Split::columns({2 * width}).gathered());
  out_ = zero_linear("out", width, out);
}
FinalLayer::~FinalLayer() = default;

Tensor FinalLayer::forward(const Stream& stream, Context& ctx) {
  const auto& cond = stream.condition.cond_BD;
  Tensor shift, scale;
  if (table_.defined()) {
    const auto once = cond.slice(-1, 0, width_).unsqueeze(-2);
    auto sizes = once.sizes().vec();
    sizes.end()[-2] = 2;
    // The gradients of two copies are added; that of an expanded tensor is a sum of LibTorch's.
    const auto twice = ctx.token_leaf > 0 ? torch::cat({once, once}, -2) : once.expand(sizes);
    const auto both = ctx.ops.add_row(twice, table_(ctx)).unbind(-2);
    shift = both[0], scale = both[1];
  } else {
    const auto both = modulation_(ctx.ops.silu(cond), ctx).chunk(2, -1);
    shift = both[0], scale = both[1];
  }
  return out_(ctx.ops.norm_modulate(stream.x_BTD, shift, scale, stream), ctx);
}

}  // namespace ditto
