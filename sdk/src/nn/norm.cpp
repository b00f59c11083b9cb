#include <ditto/nn/norm.h>

#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>

namespace ditto {

using torch::Tensor;

LayerNorm::LayerNorm(int64_t width, double eps)
    : weight_(parameter("weight", {width}, Init::ones())),
      bias_(parameter("bias", {width}, Init::zeros())),
      eps_(eps) {}
LayerNorm::~LayerNorm() = default;

Tensor LayerNorm::forward(const Tensor& x, Context& ctx) {
  return ctx.ops.layer_norm(x.to(ctx.compute), weight_(ctx), bias_(ctx), eps_);
}

RmsNorm::RmsNorm(int64_t width, double eps) : weight_(parameter("weight", {width}, Init::ones())), eps_(eps) {}
RmsNorm::~RmsNorm() = default;

Tensor RmsNorm::forward(const Tensor& x, Context& ctx) {
  return ctx.ops.rms_norm(x, weight_(ctx), eps_).to(ctx.compute);
}

// Of one number the weight's gradient is a tree over samples, below it one over heads, and below that one over tokens,
// so that ranks may have heads, tokens, or both: the weight is given to every head of every sample as a row of its own.
Tensor RmsNorm::of_heads(const Tensor& x_BTNK, const LinearModule& map, Context& ctx, const Ops& of_tokens) {
  if (ctx.token_leaf == 0) return forward(x_BTNK, ctx);
  const Ops ops = of_tokens.of(map.split.sequence);
  const int64_t samples = x_BTNK.size(0), heads = x_BTNK.size(2);
  int64_t leaves = map.leaves.out.empty() ? 1 : map.leaves.out[0];  // that are here, of whole heads
  if (map.nodes) leaves = std::accumulate(map.nodes->leaves.begin(), map.nodes->leaves.end(), int64_t{0});
  const int64_t of_leaf = heads / leaves;
  Tensor rows_BNK;
  if (map.nodes) {
    const auto copies = map.nodes->copies_of_rows(ops.spread(weight_(ctx), samples, 1, 1).squeeze(1));
    Tensors nodes;
    for (size_t i = 0; i < copies.size(); ++i)
      nodes.push_back(ops.spread(copies[i], samples, map.nodes->leaves[i] * of_leaf, of_leaf));
    rows_BNK = nodes.size() == 1 ? nodes[0] : torch::cat(nodes, 1);
  } else {
    rows_BNK = ops.spread(weight_(ctx), samples, heads, of_leaf);
  }
  const auto y = ops.rms_norm(x_BTNK.transpose(1, 2).flatten(0, 1), rows_BNK.flatten(0, 1), eps_);
  return y.unflatten(0, {samples, heads}).transpose(1, 2).to(ctx.compute);
}

}  // namespace ditto
