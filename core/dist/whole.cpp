#include "core/dist/whole.h"

#include <torch/torch.h>

namespace ditto {

torch::Tensor whole(const LayoutEntry& entry, const torch::Tensor& local, const Mesh& mesh) {
  AxisSet cut_along;
  for (const auto& [axis, cut] : entry.cuts) cut_along.insert(axis);
  if (cut_along.empty()) return local.detach().clone();
  auto full = torch::zeros(entry.full_shape, local.options().requires_grad(false));
  for (const auto& piece : entry.slices()) {
    auto to = full;
    auto from = local.detach();
    for (size_t dim = 0; dim < piece.size.size(); ++dim) {
      to = to.narrow(static_cast<int64_t>(dim), piece.global_start[dim], piece.size[dim]);
      from = from.narrow(static_cast<int64_t>(dim), piece.local_start[dim], piece.size[dim]);
    }
    to.copy_(from);
  }
  return mesh.group(cut_along).all_reduce(full);  // each number is held by one rank: the others' zeros change none
}

}  // namespace ditto
