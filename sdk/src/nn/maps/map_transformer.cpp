#include <ditto/nn/map_transformer.h>

#include <string>

#include <torch/types.h>

#include <ditto/nn/transformer.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr double kEps = 1e-6;     // of the norm of the map
constexpr int64_t kMlpRatio = 4;  // the perceptron's numbers over the channels

// Of places to one another, or, where a text has a width, to it.
class PlacesAttention : public Layer {
 public:
  PlacesAttention(const MapTransformerShape& s, int64_t text)
      : head_width_(s.channels / s.heads),
        upcast_(s.upcast),
        proj_(linear("proj", s.channels, s.channels, Split::rows().in_units(s.channels / s.heads))) {
    const auto map = [&](const char* name, int64_t in, const Split& split) {
      const int64_t out = static_cast<int64_t>(split.parts.size()) * s.channels;
      return linear(name, in, out, split, Init::xavier(in, out), kNoBias);
    };
    const auto heads = [&](std::vector<int64_t> counts) { return Split::heads(std::move(counts), head_width_); };
    if (text == 0) {
      qkv_ = map("qkv", s.channels, heads({s.heads, s.heads, s.heads}));
      return;
    }
    q_ = map("q", s.channels, heads({s.heads}));
    kv_ = map("kv", text, heads({s.heads, s.heads}).of_condition());
  }

  // Without `mask_BS` the whole text is seen.
  Tensor forward(const Tensor& x_BTC, const Sequence& places, const Tensor& text_BSE, const Tensor& mask_BS,
                 Context& ctx) {
    if (qkv_)
      return ctx.attention_unit(qkv_, proj_, x_BTC, [&](const Tensor& in) {
        const auto qkv = qkv_(in, ctx).unflatten(-1, {3, -1, head_width_}).unbind(-3);  // of the heads that are here
        return proj_(attended({qkv[0], qkv[1], qkv[2], places}, Pattern::full, ctx), ctx);
      });
    const auto q = q_(x_BTC, ctx).unflatten(-1, {-1, head_width_});
    const auto kv = kv_(text_BSE, ctx).unflatten(-1, {2, -1, head_width_}).unbind(-3);
    return proj_(attended({q, kv[0], kv[1], places, mask_BS}, Pattern::cross, ctx), ctx);
  }

 private:
  Tensor attended(AttentionPart part, Pattern pattern, Context& ctx) const {
    const auto given = part.q.scalar_type();
    if (upcast_ && at::isReducedFloatingType(given))
      for (Tensor* tensor : {&part.q, &part.k, &part.v}) *tensor = tensor->to(torch::kFloat);
    return ctx.attention({.parts = {std::move(part)}, .pattern = pattern}).at(0).flatten(-2).to(given);
  }

  int64_t head_width_;
  bool upcast_;
  Linear qkv_, q_, kv_, proj_;
};

}  // namespace

class MapTransformer::OneLayer : public Layer {
 public:
  explicit OneLayer(const MapTransformerShape& s)
      : norm1_(make<LayerNorm>("norm1", s.channels)),
        attn_(make<PlacesAttention>("attn", s, s.only_text ? s.text : 0)),
        norm2_(make<LayerNorm>("norm2", s.channels)),
        cross_(make<PlacesAttention>("cross", s, s.text)),
        norm3_(make<LayerNorm>("norm3", s.channels)),
        mlp_(make<GatedMlp>("mlp", Gate::gelu, s.channels, kMlpRatio * s.channels)) {}

  Tensor forward(Tensor x_BTC, const Sequence& places, const Conditioning& condition, Context& ctx) {
    const auto &text_BSE = condition.text_BSE, &mask_BS = condition.text_mask_BS;
    x_BTC =
        x_BTC + attn_->forward(norm1_->forward(x_BTC, ctx), places, text_BSE, Tensor(), ctx);  // as diffusers' attn1
    x_BTC = x_BTC + cross_->forward(norm2_->forward(x_BTC, ctx), places, text_BSE, mask_BS, ctx);
    return x_BTC + mlp_->forward(norm3_->forward(x_BTC, ctx), ctx);
  }

 private:
  std::shared_ptr<LayerNorm> norm1_;
  std::shared_ptr<PlacesAttention> attn_;
  std::shared_ptr<LayerNorm> norm2_;
  std::shared_ptr<PlacesAttention> cross_;
  std::shared_ptr<LayerNorm> norm3_;
  std::shared_ptr<GatedMlp> mlp_;
};

MapTransformer::MapTransformer(const MapTransformerShape& s)
    : norm_(make<GroupNorm>("norm", s.groups, s.channels, Split::none(), kEps)),
      proj_in_(linear("proj_in", s.channels, s.channels)),
      proj_out_(zero_linear("proj_out", s.channels, s.channels)) {
  if (s.heads < 1 || s.channels % s.heads != 0)
    throw Error(ErrorKind::plugin, "transformer of a map",
                "has " + std::to_string(s.heads) + " heads of " + std::to_string(s.channels) + " channels",
                "expected a number of heads that divides them");
  for (int64_t i = 0; i < s.layers; ++i) layers_.push_back(make<OneLayer>("layer" + std::to_string(i), s));
}
MapTransformer::~MapTransformer() = default;

Tensor MapTransformer::forward(const Tensor& map, const Conditioning& condition, Context& ctx) {
  const int64_t rows = map.size(2), columns = map.size(3);
  const Sequence places{{1, rows, columns}, nullptr};
  Tensor x_BTC = proj_in_(norm_->forward(map, ctx).flatten(2).transpose(1, 2), ctx);
  for (const auto& layer : layers_) x_BTC = layer->forward(x_BTC, places, condition, ctx);
  return map + proj_out_(x_BTC, ctx).transpose(1, 2).unflatten(2, {rows, columns});
}

}  // namespace ditto
