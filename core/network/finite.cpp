#include "core/network/finite.h"

#include <cmath>
#include <limits>
#include <vector>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

namespace {

// Norms, which are not finite where one number is not. Asked for first and looked at last, so that a device is waited
// for once.
class Norms {
 public:
  void add(std::string name, const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0) return;
    const auto numbers = tensor.element_size() == 1 ? tensor.detach().to(torch::kFloat) : tensor.detach();
    all_.push_back({std::move(name), numbers, torch::linalg_vector_norm(numbers)});
  }

  std::string first_not_finite() const {
    for (const auto& [name, numbers, norm] : all_)
      if (!is_finite(norm) && !is_finite(largest(numbers))) return name;
    return {};
  }

 private:
  // Squares of large numbers are infinite. Slower by far, and seldom asked for.
  static torch::Tensor largest(const torch::Tensor& numbers) {
    return torch::linalg_vector_norm(numbers, std::numeric_limits<double>::infinity());
  }
  static bool is_finite(const torch::Tensor& number) { return std::isfinite(number.item<double>()); }

  struct One {
    std::string name;
    torch::Tensor numbers, norm;
  };
  std::vector<One> all_;
};

std::string first_not_finite(const checkpoint::TrainState& state) {
  const torch::NoGradGuard no_grad;
  Norms norms;
  const auto& entries = state.layout->entries;
  for (const auto& entry : entries) norms.add("weight '" + entry.name + "'", entry.tensor);
  for (size_t i = 0; state.ema && i < state.ema->size(); ++i)
    norms.add("average of '" + entries.at(i).name + "'", (*state.ema)[i]);
  if (state.optimizer)
    for (const auto& [kind, of] : state.optimizer->state())
      for (size_t i = 0; i < of.tensors.size(); ++i)
        norms.add("optimizer state '" + kind + "' of '" + entries.at(i).name + "'", of.tensors[i]);
  return norms.first_not_finite();
}

}  // namespace

std::string not_finite(const checkpoint::TrainState& state, const Group& ranks) {
  for (const auto& found : ranks.all_gather_text(first_not_finite(state)))
    if (!found.empty()) return found;
  return {};
}

void require_finite(const Layout& layout, const std::string& path) {
  const torch::NoGradGuard no_grad;
  Norms norms;
  for (const auto& entry : layout.entries) norms.add("weight '" + entry.name + "'", entry.tensor);
  if (const auto found = norms.first_not_finite(); !found.empty())
    throw Error(ErrorKind::checkpoint, path, found + " holds numbers that are not finite",
                "use a checkpoint from before they came");
}

}  // namespace ditto
