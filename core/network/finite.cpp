#include "core/network/finite.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

namespace {

// Norms, which are not finite where one number is not: of all tensors of a device and dtype at once, and looked at
// together, so that a device is waited for once.
class Norms {
 public:
  void add(std::string name, const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0) return;
    const auto numbers = tensor.element_size() == 1 ? tensor.detach().to(torch::kFloat) : tensor.detach();
    alike_[{numbers.device().type(), numbers.scalar_type()}].push_back(all_.size());
    all_.push_back({std::move(name), numbers});
  }

  std::string first_not_finite() const {
    const auto is_finite = all_finite();
    for (size_t i = 0; i < all_.size(); ++i)
      if (!is_finite[i] && !std::isfinite(largest(all_[i].numbers))) return all_[i].name;
    return {};
  }

 private:
  // Squares of large numbers are infinite. Slower by far, and seldom asked for.
  static double largest(const torch::Tensor& numbers) {
    return torch::linalg_vector_norm(numbers, std::numeric_limits<double>::infinity()).item<double>();
  }

  std::vector<bool> all_finite() const {
    std::map<at::DeviceType, std::vector<torch::Tensor>> found;
    std::map<at::DeviceType, std::vector<size_t>> of;
    for (const auto& [key, places] : alike_) {
      std::vector<torch::Tensor> numbers;
      for (const size_t i : places) numbers.push_back(all_[i].numbers);
      found[key.first].push_back(torch::stack(at::_foreach_norm(numbers)).isfinite());
      of[key.first].insert(of[key.first].end(), places.begin(), places.end());
    }
    std::vector<bool> is_finite(all_.size());
    for (const auto& [device, flags] : found) {
      const auto here = torch::cat(flags).cpu();
      for (size_t i = 0; i < of[device].size(); ++i) is_finite[of[device][i]] = here.const_data_ptr<bool>()[i];
    }
    return is_finite;
  }

  struct One {
    std::string name;
    torch::Tensor numbers;
  };
  std::vector<One> all_;
  std::map<std::pair<at::DeviceType, at::ScalarType>, std::vector<size_t>> alike_;  // places of all_
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
