// A norm of queries or keys over all heads of a token together.
#pragma once

#include <ditto/nn/norm.h>

namespace ditto {

// x / sqrt(mean of x^2 over all N K numbers of a token + eps) * weight, in fp32, of heads [B, T, N, K] that a layer
// with Split::heads has made (RMSNorm, arXiv:1910.07467; Wan's norm of queries and keys, arXiv:2503.20314). Along
// tensor its weight [N K], ones, is cut by heads as they are, and the sum of squares [B, T] goes through an all-reduce.
// Under run.numerics = "one" it is not cut.
class DITTO_API RmsNormOverHeads : public CutLayer {
 public:
  RmsNormOverHeads(int64_t heads, int64_t head_width, double eps = 1e-6);
  ~RmsNormOverHeads() override;
  // `ops` says of which tokens. Throws Error(config) where heads are missing that no tensor cut has taken: a strategy
  // that maps each rank's heads alone.
  torch::Tensor forward(const torch::Tensor& x_BTNK, Context& ctx, const Ops& ops);

  Parameter weight;  // [N K]; a strategy may have cut it

 private:
  int64_t width_;  // of all heads
  double eps_;
};

}  // namespace ditto
