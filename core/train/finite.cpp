#include "core/train/finite.h"

#include <cmath>
#include <limits>
#include <vector>

#include <torch/torch.h>

#include <ditto/error.h>

namespace ditto {

namespace {

// Largest magnitudes, which are not finite where one number is not. Asked for first and looked at last, so that a
// device is waited for once.
class Magnitudes {
 public:
  void add(std::string name, const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0) return;
    const auto numbers = tensor.element_size() == 1 ? tensor.detach().to(torch::kFloat) : tensor.detach();
    names_.push_back(std::move(name));
    largest_.push_back(torch::linalg_vector_norm(numbers, std::numeric_limits<double>::infinity()));
  }

  std::string first_not_finite() const {
    for (size_t i = 0; i < names_.size(); ++i)
      if (!std::isfinite(largest_[i].item<double>())) return names_[i];
    return {};
  }

 private:
  std::vector<std::string> names_;
  std::vector<torch::Tensor> largest_;
};

std::string first_not_finite(const checkpoint::TrainState& state) {
  const torch::NoGradGuard no_grad;
  Magnitudes magnitudes;
  const auto& entries = state.layout->entries;
  for (const auto& entry : entries) magnitudes.add("weight '" + entry.name + "'", entry.tensor);
  for (size_t i = 0; state.ema && i < state.ema->size(); ++i)
    magnitudes.add("average of '" + entries.at(i).name + "'", (*state.ema)[i]);
  if (state.optimizer)
    for (const auto& [kind, of] : state.optimizer->state())
      for (size_t i = 0; i < of.tensors.size(); ++i)
        magnitudes.add("optimizer state '" + kind + "' of '" + entries.at(i).name + "'", of.tensors[i]);
  return magnitudes.first_not_finite();
}

}  // namespace

std::string not_finite(const checkpoint::TrainState& state, const Group& ranks) {
  for (const auto& found : ranks.all_gather_text(first_not_finite(state)))
    if (!found.empty()) return found;
  return {};
}

void require_finite(const Layout& layout, const std::string& path) {
  const torch::NoGradGuard no_grad;
  Magnitudes magnitudes;
  for (const auto& entry : layout.entries) magnitudes.add("weight '" + entry.name + "'", entry.tensor);
  if (const auto found = magnitudes.first_not_finite(); !found.empty())
    throw Error(ErrorKind::checkpoint, path, found + " holds numbers that are not finite",
                "use a checkpoint from before they came");
}

}  // namespace ditto
