// A model of two blocks with every kind of Split and a parameter of no Linear, without attention.
#pragma once

#include <memory>
#include <string>

#include <torch/types.h>

#include <ditto/parallel/program.h>

#include "tests/unit/ranks.h"

namespace ditto::testing {

class SmallBlock : public Layer {
 public:
  SmallBlock(int64_t width, int64_t heads, int64_t mlp) : head_width_(width / heads) {
    modulation_ = linear("modulation", width, 3 * width, Split::columns({width, width, width}).gathered());
    qkv_ = linear("qkv", width, 3 * width, Split::heads({heads, heads, heads}, head_width_));
    scale_ = parameter("scale", {head_width_}, Init::ones());  // as a norm of queries has
    out_ = linear("out", width, width, Split::rows());
    up_ = linear("up", width, mlp, Split::columns({mlp}));
    down_ = linear("down", mlp, width, Split::rows());
  }
  torch::Tensor forward(const torch::Tensor& x_BTD, const torch::Tensor& cond_BD, Context& ctx) {
    const auto m = modulation_(cond_BD, ctx).unsqueeze(1).chunk(3, -1);
    const auto qkv = qkv_(x_BTD * (1 + m[0]), ctx).chunk(3, -1);
    const auto q = qkv[0].unflatten(-1, {-1, head_width_}) * scale_(ctx);
    const auto heads = torch::sigmoid(q * qkv[1].unflatten(-1, {-1, head_width_})).flatten(-2) * qkv[2];
    const auto x = x_BTD + out_(heads, ctx);
    return x + m[1] * down_(torch::gelu(up_(x + m[2], ctx)), ctx);
  }

 private:
  int64_t head_width_;
  Linear modulation_, qkv_, out_, up_, down_;
  Parameter scale_;
};

class SmallModel : public Model {
 public:
  explicit SmallModel(int64_t width = 16, int64_t heads = 4, int64_t mlp = 32, bool has_unused = false) {
    embed_ = linear(Unit::tokens, "embed", 3, width);
    condition_ = linear(Unit::condition, "condition", 1, width);
    for (int64_t i = 0; i < 2; ++i) blocks_.push_back(add_block<SmallBlock>(i, width, heads, mlp));
    head_ = linear(Unit::head, "head", width, 3);
    if (has_unused) linear(Unit::head, "unused", width, 5);
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    return {torch::tanh(condition_(batch.at("t").unsqueeze(1), ctx)), {}, {}};
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream stream;
    stream.x_BTD = embed_(batch.at("x"), ctx);
    return stream;
  }
  int64_t depth() const override { return 2; }
  Stream run_block(int64_t i, Stream stream, Context& ctx) override {
    stream.x_BTD = blocks_[static_cast<size_t>(i)]->forward(stream.x_BTD, stream.condition.cond_BD, ctx);
    return stream;
  }
  torch::Tensor head(const Stream& stream, Context& ctx) override { return head_(stream.x_BTD, ctx); }
  TensorSpecs takes() const override { return {}; }

  // x [B, T, 3], t [B] -> [B, T, 3]
  torch::Tensor predict(const Batch& batch, Context& ctx) {
    ModelProgram program(*this, ctx);
    auto stream = program.begin(batch);
    program.blocks(0, depth(), stream);
    return program.head(stream, batch).at("prediction");
  }

 private:
  Linear embed_, condition_, head_;
  std::vector<std::shared_ptr<SmallBlock>> blocks_;
};

inline std::shared_ptr<Context> small_context(at::ScalarType dtype) {
  auto ctx = std::make_shared<Context>(std::make_shared<OpTable>(), Random(1));
  ctx->compute = dtype;
  return ctx;
}

// No parameter is zero, and copies made on any rank are equal.
inline void fill(Model& model, at::ScalarType dtype) {
  torch::NoGradGuard no_grad;
  model.to(dtype);
  int64_t seed = 100;
  for (auto& item : model.named_parameters()) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(++seed));
    item.value().copy_(torch::randn(item.value().sizes(), generator, torch::kDouble) * 0.3);
  }
}

inline Batch small_batch(int64_t seed, int64_t samples, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  Batch batch;
  batch["x"] = torch::randn({samples, 5, 3}, generator, torch::kDouble).to(dtype);
  batch["t"] = torch::randn({samples}, generator, torch::kDouble).to(dtype);
  batch["target"] = torch::randn({samples, 5, 3}, generator, torch::kDouble).to(dtype);
  return batch;
}

}  // namespace ditto::testing
