#include "parallel/parallel_model.h"

#include <torch/types.h>

#include <ditto/nn/transformer.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kSamples = 2, kDepth = 4, kChannels = 2, kFrames = 3, kRows = 4, kColumns = 2, kPatch = 2;
constexpr int64_t kWidth = 32, kHeads = 4, kHeadWidth = kWidth / kHeads, kExperts = 4, kTexts = 3, kTextWidth = 5;
constexpr int64_t kTokens = kFrames * (kRows / kPatch) * (kColumns / kPatch);

AttentionOptions attention_options() { return {kWidth, kHeads, /*kv_heads=*/2, /*qk_norm=*/true}; }

// Attention that sees the tokens for which the stream's "counts" is true.
struct MaskedAttention : Layer {
  MaskedAttention()
      : qkv(linear("qkv", kWidth, 3 * kWidth, Split::heads({kHeads, kHeads, kHeads}, kHeadWidth))),
        proj(linear("proj", kWidth, kWidth, Split::rows())) {}
  Tensor forward(const Tensor& x_BTD, Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv, proj, x_BTD, [&](const Tensor& x) {
      const auto parts = qkv(x, ctx).unflatten(-1, {3, -1, kHeadWidth}).unbind(-3);
      const auto y = ctx.attention({.parts = {{parts[0], parts[1], parts[2], s, s.extra.at("counts").tensor}}});
      return proj(y[0].flatten(-2), ctx);
    });
  }
  Linear qkv, proj;
};

struct Block : Layer {
  explicit Block(int64_t index)
      : is_last(index + 1 == kDepth),
        pattern(index == 0   ? Pattern::spatial
                : index == 1 ? Pattern::temporal
                             : Pattern::full),
        modulation(register_module("modulation", std::make_shared<Modulation>(AdaLn::zero, kWidth, 2))),
        attention(register_module("attention", std::make_shared<SelfAttention>(attention_options()))),
        cross(register_module("cross", std::make_shared<CrossAttention>(attention_options()))) {
    if (!is_last) {
      mlp = register_module("mlp", std::make_shared<Mlp>(kWidth, 2 * kWidth));
      return;
    }
    masked = register_module("masked", std::make_shared<MaskedAttention>());
    router = linear("router", kWidth, kExperts);
    experts = register_module("experts", std::make_shared<ExpertsModule>(kExperts, kWidth, kWidth));
  }

  void forward(Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    auto h =
        attention->forward(ctx.ops.norm_modulate(s.x_BTD, m[0].shift, m[0].scale, s), pattern, s.rotary_TK, s, ctx);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[0].gate, h, s);
    s.x_BTD = s.x_BTD + cross->forward(s.x_BTD, s, ctx);
    if (masked) s.x_BTD = s.x_BTD + masked->forward(s.x_BTD, s, ctx);
    h = ctx.ops.norm_modulate(s.x_BTD, m[1].shift, m[1].scale, s);
    h = mlp ? mlp->forward(h, ctx)
            : experts->forward(
                  h, [&](const Tensor& x) { return route(x, s, ctx); }, ctx);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[1].gate, h, s);
  }

  // The two likeliest experts of each token; and a loss of each sample.
  Routing route(const Tensor& x_BTD, Stream& s, Context& ctx) {
    const auto p_BTE = torch::softmax(router(x_BTD, ctx), -1);
    s.auxiliary_losses["balance"] = ctx.all_tokens(p_BTE, s).mean(1).square().sum(-1);
    const auto taken =
        torch::zeros_like(p_BTE, torch::kBool).scatter(-1, std::get<1>(p_BTE.detach().topk(2, -1)), true);
    const auto rows = taken.flatten(0, 1).nonzero().unbind(1);
    return {rows[0], rows[1], p_BTE.masked_select(taken)};
  }

  bool is_last;
  Pattern pattern;
  std::shared_ptr<Modulation> modulation;
  std::shared_ptr<SelfAttention> attention;
  std::shared_ptr<CrossAttention> cross;
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<MaskedAttention> masked;
  Linear router;
  std::shared_ptr<ExpertsModule> experts;
};

class ParallelModel final : public Model {
 public:
  ParallelModel() {
    patches_ = add<VideoPatchEmbed>(Unit::tokens, "patches", kChannels, kPatch, 1, kWidth);
    time_ = add<TimeEmbed>(Unit::condition, "time", kWidth, 128.0);
    text_ = add<TextEmbed>(Unit::condition, "text", kTextWidth, kWidth);
    for (int64_t i = 0; i < kDepth; ++i) blocks_.push_back(add_block<Block>(i, i));
    final_ = add<FinalLayer>(Unit::head, "final", AdaLn::zero, kWidth, kPatch * kPatch * kChannels);
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    Conditioning made;
    made.cond_BD = time_->forward(batch.at("t"), ctx);
    text_->forward(batch, made, ctx);
    return made;
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream s;
    s.grid = patches_->grid(batch.at("x"));
    s.x_BTD = patches_->forward(batch.at("x"), ctx);
    return s;
  }
  void constants(const Batch& batch, Stream& s, Context& ctx) override {
    s.rotary_TK = rotary_table(s.grid, kHeadWidth).to(ctx.options());
    s.extra["counts"] = {batch.at("counts"), 1, Role::constant};
  }
  int64_t depth() const override { return kDepth; }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    if (i == 0) s.skips_BTD.push_back(s.x_BTD);
    if (i + 1 == kDepth) {
      s.x_BTD = s.x_BTD + 0.5 * s.skips_BTD.back();
      s.skips_BTD.pop_back();
    }
    blocks_[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }
  Tensor head(const Stream& s, Context& ctx) override { return patches_->unpatchify(final_->forward(s, ctx), s.grid); }
  TensorSpecs takes() const override { return {}; }
  bool token_local() const override { return true; }

 private:
  std::shared_ptr<VideoPatchEmbed> patches_;
  std::shared_ptr<TimeEmbed> time_;
  std::shared_ptr<TextEmbed> text_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<FinalLayer> final_;
};

}  // namespace

std::shared_ptr<Model> parallel_model() { return std::make_shared<ParallelModel>(); }

Batch parallel_batch(int64_t number) {
  const auto name = [&](const char* what) { return what + std::to_string(number); };
  const std::vector<int64_t> picture{kSamples, kChannels, kFrames, kRows, kColumns};
  Batch batch;
  batch["x"] = normal(name("x"), picture);
  batch["target"] = normal(name("target"), picture);
  batch["t"] = uniform(name("t"), {kSamples});
  batch["text"] = normal(name("text"), {kSamples, kTexts, kTextWidth});
  batch["text_mask"] = torch::ones({kSamples, kTexts}, torch::kBool);
  batch["text_mask"][0][kTexts - 1] = false;
  batch["text_mask"][1].fill_(number % 2 == 0);  // every other one is the null text
  batch["counts"] = uniform(name("counts"), {kSamples, kTokens}).lt(0.6);
  batch["counts"].index_put_({torch::indexing::Slice(), number % kTokens}, true);
  for (int64_t i = 0; i < kSamples; ++i) batch.ids.push_back(kSamples * number + i), batch.weights.push_back(1);
  return batch;
}

}  // namespace ditto::testing
