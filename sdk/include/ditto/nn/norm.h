// Norms over the last dim.
//
// Legend: B samples, T tokens, N heads, K their width, or the last dim's.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include <ditto/nn/layer.h>

namespace ditto {

class Ops;

// Root mean square over the last dim, as queries and keys are normalised with (arXiv:1910.07467), computed in fp32:
// x / sqrt(mean(x^2) + eps) * weight. x [..., K].
class DITTO_API RmsNorm : public Layer {
 public:
  explicit RmsNorm(int64_t width, double eps = 1e-6);
  ~RmsNorm() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  // Of heads [B, T, N, K] of queries or keys that `map` has made, as many as are here; `of_tokens`: ctx.ops as the map
  // sees them.
  torch::Tensor of_heads(const torch::Tensor& x_BTNK, const LinearModule& map, Context& ctx, const Ops& of_tokens);

 private:
  Parameter weight_;  // [K], ones
  double eps_;
};

// LayerNorm over the last dim, with weight and bias [K]: what tokens are normalised with where no modulation does it.
// Every rank has all of K.
class DITTO_API LayerNorm : public Layer {
 public:
  explicit LayerNorm(int64_t width, double eps = 1e-5);
  ~LayerNorm() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);

 private:
  Parameter weight_, bias_;  // ones, zeros
  double eps_;
};

}  // namespace ditto
