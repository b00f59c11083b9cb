#include "core/checkpoint/positions.h"

#include <torch/nn/functional/upsampling.h>

namespace ditto::checkpoint {

bool can_interpolate(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  return from.size() == to.size() && from.size() >= 2 && from.size() <= 4 && from.back() == to.back();
}

torch::Tensor interpolated(const torch::Tensor& table, const std::vector<int64_t>& to) {
  namespace F = torch::nn::functional;
  F::InterpolateFuncOptions options;
  options.size(std::vector<int64_t>(to.begin(), to.end() - 1)).align_corners(false);
  switch (to.size()) {
    case 2: options.mode(torch::kLinear); break;
    case 3: options.mode(torch::kBicubic); break;
    default: options.mode(torch::kTrilinear); break;
  }
  const auto channels_first = table.to(torch::kDouble).movedim(-1, 0).unsqueeze(0);
  return F::interpolate(channels_first, options).squeeze(0).movedim(0, -1).to(table.scalar_type());
}

}  // namespace ditto::checkpoint
