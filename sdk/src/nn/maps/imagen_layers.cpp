#include <ditto/nn/imagen_layers.h>

#include <numbers>
#include <utility>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/upload.h>

namespace ditto {

using torch::Tensor;

namespace {

// A map's places as tokens [B, T, C], and back.
Tensor places_of(const Tensor& map) { return map.flatten(2).transpose(1, 2); }
Tensor as_map(const Tensor& places_BTC, const Tensor& like) {
  return places_BTC.transpose(1, 2).unflatten(2, {like.size(2), like.size(3)});
}

// Rows of sums over the last dim, which ops make in a fixed order.
Tensor total(const Tensor& x, Context& ctx) { return ctx.ops.row_total(x).select(-1, 0); }

}  // namespace

struct ImagenAttention::Keys {
  Tensor k, v, mask_BS;
};

ImagenAttention::ImagenAttention(const ImagenAttentionShape& s) : shape_(s) {
  const int64_t C = s.channels, N = s.heads, K = C / N;
  norm_ = make<GroupNorm>("norm", kImagenGroups, C);
  if (s.type == "stacked") {
    auto self = s, cross = s;
    self.type = "self", cross.type = "cross";
    in_ = make<Conv2d>("in", ConvShape{C, C, {1}});
    self_ = make<ImagenAttention>("self", self);
    cross_ = make<ImagenAttention>("cross", cross);
    ff_norm_ = make<GroupNorm>("ff_norm", kImagenGroups, C);
    ff_ = make<GeGlu>("ff", C, 4 * C);
    out_ = make<Conv2d>("out", ConvShape{C, C, {1}}, Split::none(), Init::zeros());
    return;
  }
  if (s.type == "self") {
    qkv_ = linear("qkv", C, 3 * C, Split::heads({N, N, N}, K));
  } else {
    q_ = linear("q", C, C, Split::heads({N}, K));
    norm_text_ = make<GroupNorm>("norm_text", kImagenGroups, s.context);
    kv_text_ = linear("kv_text", s.context, 2 * C, Split::heads({N, N}, K).of_condition());
  }
  if (s.type == "fused") {
    norm_self_ = make<GroupNorm>("norm_self", kImagenGroups, C);
    kv_self_ = linear("kv_self", C, 2 * C, Split::heads({N, N}, K));
  }
  proj_ = zero_linear("proj", C, C, Split::rows().in_units(K));
}
ImagenAttention::~ImagenAttention() = default;

// Where nothing of a text counts, all of it is seen and has values of zero: attention to nothing is undefined.
ImagenAttention::Keys ImagenAttention::of_text(const Conditioning& text, Context& ctx) {
  const auto in = norm_text_->forward(text.text_BSE.transpose(1, 2).contiguous(), ctx).transpose(1, 2);
  const auto kv = kv_text_(in, ctx).unflatten(-1, {2, -1, shape_.channels / shape_.heads}).unbind(-3);
  const auto is_there_B1 = text.text_mask_BS.any(1, /*keepdim=*/true);
  return {kv[0], kv[1] * is_there_B1.view({-1, 1, 1, 1}).to(kv[1].scalar_type()),
          text.text_mask_BS.bitwise_or(is_there_B1.bitwise_not())};
}

Tensor ImagenAttention::attend(const Tensor& x, const Conditioning& text, Context& ctx) {
  const int64_t K = shape_.channels / shape_.heads;
  const auto in = places_of(norm_->forward(x, ctx));
  AttentionCall call;
  call.parts.resize(1);
  AttentionPart& part = call.parts[0];
  part.tokens.grid = {1, x.size(2), x.size(3)};
  if (qkv_) {
    const auto qkv = qkv_(in, ctx).unflatten(-1, {3, -1, K}).unbind(-3);  // of the heads that are here
    part.q = qkv[0], part.k = qkv[1], part.v = qkv[2];
    return proj_(ctx.attention(call).at(0).flatten(-2), ctx);
  }
  call.pattern = Pattern::cross;
  part.q = q_(in, ctx).unflatten(-1, {-1, K});
  Keys keys = of_text(text, ctx);
  if (kv_self_) {
    const auto own = kv_self_(places_of(norm_self_->forward(x, ctx)), ctx).unflatten(-1, {2, -1, K}).unbind(-3);
    const auto& mask_BS = keys.mask_BS;
    keys = {torch::cat({own[0], keys.k}, 1), torch::cat({own[1], keys.v}, 1),
            torch::cat({torch::ones({mask_BS.size(0), own[0].size(1)}, mask_BS.options()), text.text_mask_BS}, 1)};
  }
  part.k = keys.k, part.v = keys.v, part.key_mask_BS = keys.mask_BS;
  return proj_(ctx.attention(call).at(0).flatten(-2), ctx);
}

Tensor ImagenAttention::stacked(const Tensor& x, const Conditioning& text, Context& ctx) {
  auto h = in_->forward(norm_->forward(x, ctx), ctx);
  h = cross_->forward(self_->forward(h, text, ctx), text, ctx);
  h = h + as_map(ff_->forward(places_of(ff_norm_->forward(h, ctx)), ctx), h);
  return x + out_->forward(h, ctx);
}

Tensor ImagenAttention::forward(const Tensor& x, const Conditioning& text, Context& ctx) {
  return in_ ? stacked(x, text, ctx) : x + as_map(attend(x, text, ctx), x);
}

ImagenTime::ImagenTime(int64_t learned, int64_t features, int64_t width) : features_(features) {
  if (learned > 0) weights_ = parameter("weights", {learned / 2}, Init::normal(1));
  in_ = linear("in", learned > 0 ? learned + 1 : features, width);
  out_ = linear("out", width, width);
}
ImagenTime::~ImagenTime() = default;

Tensor ImagenTime::forward(const Tensor& t_B, Context& ctx) {
  Tensor features;
  if (!weights_.defined()) {
    features = timestep_features(t_B, features_ / 2, static_cast<double>(features_ / 2), ctx);
  } else {
    // Turns of many radians are no numbers for bf16.
    const auto compute = ctx.compute;
    if (compute != torch::kDouble) ctx.compute = torch::kFloat;
    const auto weights = weights_(ctx);
    ctx.compute = compute;
    const auto t_B1 = uploaded(t_B.to(weights.scalar_type()), ctx.device).unsqueeze(1);
    const auto rows = torch::zeros({t_B.size(0), weights.size(0)}, weights.options().requires_grad(false));
    const auto angle = t_B1 * ctx.ops.of_condition().add_row(rows, weights) * (2 * std::numbers::pi);
    features = torch::cat({t_B1, ctx.ops.run("sin", {{angle}}).at(0), ctx.ops.run("cos", {{angle}}).at(0)}, 1);
  }
  return out_(ctx.ops.silu(in_(features.to(ctx.compute), ctx)), ctx);
}

ImagenText::ImagenText(const Shape& s) : shape_(s) {
  if (s.attention_pooling) {
    pool_ = linear("pool", s.text, 1);
    pool_norm_ = make<LayerNorm>("pool_norm", s.text);
    pool_out_ = linear("pool_out", s.text, s.context);
  }
  if (s.is_seen || !s.attention_pooling) to_context_ = linear("to_context", s.text, s.context);
  norm_ = make<LayerNorm>("norm", s.context);
  in_ = linear("in", s.context, s.width);
  out_ = linear("out", s.width, s.width);
  if (s.null_token) null_ = parameter("null", {s.context}, Init::normal(1));
}
ImagenText::~ImagenText() = default;

// Each place's share stands beside each of its numbers by an op, so that the gradient of the one is an op's sum too.
Tensor ImagenText::pooled(const Tensor& text_BSE, Context& ctx) {
  const auto share_BS = ctx.ops.softmax(pool_(text_BSE, ctx).squeeze(-1));
  const auto share_BSE = ctx.ops.row_total(torch::constant_pad_nd(share_BS.unsqueeze(-1), {0, text_BSE.size(-1) - 1}));
  return total((text_BSE * share_BSE).transpose(1, 2).contiguous(), ctx);
}

Tensor ImagenText::forward(const Tensor& text_BSE, const Tensor& mask_BS, Conditioning& condition, Context& ctx) {
  const auto in = text_BSE.to(ctx.compute);
  const auto context_BSE = to_context_ ? to_context_(in, ctx) : Tensor();
  const auto vector_BE = shape_.attention_pooling ? pool_out_(pool_norm_->forward(pooled(in, ctx), ctx), ctx)
                                                  : total(context_BSE.transpose(1, 2).contiguous(), ctx) / in.size(1);
  if (shape_.is_seen) condition.text_BSE = context_BSE, condition.text_mask_BS = mask_BS;
  if (null_.defined()) {
    const auto rows = torch::zeros({in.size(0), 1, shape_.context}, context_BSE.options().requires_grad(false));
    condition.text_BSE = torch::cat({context_BSE, ctx.ops.of_condition().add_row(rows, null_(ctx))}, 1);
    condition.text_mask_BS = torch::cat({mask_BS, torch::ones({in.size(0), 1}, mask_BS.options())}, 1);
  }
  return out_(ctx.ops.silu(in_(norm_->forward(vector_BE, ctx), ctx)), ctx);
}

}  // namespace ditto
