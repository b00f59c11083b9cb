#include "core/sample/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ditto {

using torch::Tensor;

namespace {

// Between the two numbers around it in order, as numpy and torch have it.
double quantile(std::vector<double> numbers, double share) {
  const double place = share * static_cast<double>(numbers.size() - 1);
  const auto below = static_cast<size_t>(place);
  const auto at = numbers.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(numbers.begin(), at, numbers.end());
  const double low = *at;
  if (below + 1 == numbers.size()) return low;
  return low + (place - std::floor(place)) * (*std::min_element(at + 1, numbers.end()) - low);
}

// Each sample's range, at least 1: [B, 1, …].
Tensor ranges(const Tensor& clean, double share) {
  const auto flat = clean.to(torch::kCPU, torch::kDouble).flatten(1).contiguous();
  std::vector<double> ranges;
  for (int64_t i = 0; i < flat.size(0); ++i) {
    const auto* numbers = flat.const_data_ptr<double>() + i * flat.size(1);
    std::vector<double> sizes(numbers, numbers + flat.size(1));
    for (double& one : sizes) one = std::abs(one);
    ranges.push_back(std::max(1.0, quantile(std::move(sizes), share)));
  }
  auto shape = std::vector<int64_t>(static_cast<size_t>(clean.dim()), 1);
  shape[0] = clean.size(0);
  return torch::tensor(ranges, torch::kDouble).to(clean.options()).view(shape);
}

}  // namespace

std::function<Tensor(const Tensor&)> clip_of(const Recipe& recipe) {
  if (recipe.sampler_clip == "none") return {};
  if (recipe.sampler_clip == "static") return [](const Tensor& clean) { return clean.clamp(-1, 1); };
  return [share = recipe.sampler_percentile](const Tensor& clean) {
    const auto range = ranges(clean, share);
    return torch::minimum(torch::maximum(clean, -range), range) / range;
  };
}

}  // namespace ditto
