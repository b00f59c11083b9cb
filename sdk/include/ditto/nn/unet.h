// What UNets are made of besides layers over maps. ditto.h does not include it.
//
// Legend: B samples, C channels that come in, N that come out, H rows, W columns, D width of the conditioning.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ditto/nn/maps.h>

namespace ditto {

struct DITTO_API ResidualShape {
  int64_t in, out;      // channels
  int64_t condition;    // D
  int64_t groups = 32;  // of both norms; divides in and out
  double eps = 1e-5;    // of both norms
  bool scale_shift =
      false;  // the conditioning scales and shifts what the second norm makes; else it is added before it
  enum class Sides { same, halved, doubled } sides = Sides::same;  // by a mean, or by transposed convolutions
  bool always_maps = false;                                        // the way past has a convolution though in = out
  double past = 1;                                                 // factor of the way past
  bool zero = true;                                                // the last convolution begins as zeros
  double dropout = 0;     // while training, of what the last convolution is given (Context::dropout)
  std::string name = {};  // of that dropout: the same for no two blocks of a model
};

// A residual block: norm, SiLU, convolution, conditioning, norm, SiLU, convolution, beside a way past them. Its middle
// is cut by channels along tensor. P. Dhariwal and A. Nichol, 2021 (arXiv:2105.05233), Table 4 and section 3.
class DITTO_API MapResidual : public Layer {
 public:
  explicit MapResidual(const ResidualShape& shape);
  ~MapResidual() override;
  // x [B, C, H, W]; cond_BD after its SiLU, which blocks share; `ids` of the samples (Stream::ids), where it drops.
  // -> [B, N, H, W], or of half or twice the sides.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cond_BD, Context& ctx,
                        const std::vector<int64_t>& ids = {});

 private:
  torch::Tensor resized(const torch::Tensor& x, ConvTransposed2d* twice, Context& ctx) const;
  ResidualShape shape_;
  std::shared_ptr<GroupNorm> norm1_;
  std::shared_ptr<ConvTransposed2d> twice_, past_twice_;
  std::shared_ptr<Conv2d> conv1_;
  Linear cond_;
  std::shared_ptr<GroupNorm> norm2_;
  std::shared_ptr<Conv2d> conv2_, past_;
};

}  // namespace ditto
