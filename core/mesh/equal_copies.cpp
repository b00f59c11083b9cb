#include "core/mesh/equal_copies.h"

#include <cstdint>
#include <cstring>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

// FNV-1a of the numbers' bits.
int64_t hash_of(const Tensor& x) {
  std::uint64_t hash = 14695981039346656037u;
  const auto numbers = x.detach().contiguous();
  const auto* values = numbers.const_data_ptr<float>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  return static_cast<int64_t>(hash);
}

}  // namespace

void check_equal_copies(const Layout& layout, const Mesh& mesh) {
  torch::NoGradGuard no_grad;
  if (mesh.size(Axis::tensor) == 1 && mesh.size(Axis::context) == 1) return;
  std::vector<int64_t> hashes;
  for (const auto& entry : layout.entries)
    hashes.push_back(entry.tensor.grad().defined() ? hash_of(entry.tensor.grad()) : 0);
  const auto count = static_cast<int64_t>(hashes.size());
  for (const Axis axis : {Axis::tensor, Axis::context}) {
    if (mesh.size(axis) == 1 || count == 0) continue;
    const auto all = mesh.group(axis).all_gather(torch::tensor(hashes, torch::kLong).unsqueeze(0), 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto& entry = layout.entries[static_cast<size_t>(i)];
      const auto of_ranks = all.select(1, i);
      if (!entry.is_copy(axis) || of_ranks.eq(of_ranks[0]).all().item<bool>()) continue;
      throw Error(ErrorKind::plugin, "parameter \"" + entry.name + "\"",
                  std::string("has another gradient on each rank of the ") + name(axis) +
                      " axis (run.numerics = \"one\"): it is used on numbers that these ranks share, and its sum over "
                      "them is not made",
                  std::string("leave parallel.") + name(axis) +
                      " = 1 for this model, or set run.numerics = \"fast\"; in your own, use layers that declare how "
                      "they are cut");
    }
  }
}

}  // namespace ditto
