#include <ditto/parallel/tree_sum.h>

#include <utility>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

// The last two become one: left + right, in the left one's memory.
void merge_last(std::vector<Tensor>& open) {
  const Tensor right = std::move(open.back());
  open.pop_back();
  open.back().add_(right);
}

}  // namespace

// A counter in binary: piece j has as many siblings waiting as j has set bits at its end.
void TreeSum::add(Tensor piece) {
  torch::NoGradGuard no_grad;
  open_.push_back(std::move(piece));
  for (int64_t j = pieces_++; j & 1; j >>= 1) merge_last(open_);
}

void TreeSum::own() {
  torch::NoGradGuard no_grad;
  for (auto& node : open_)
    if (node.has_storage() && node.storage().nbytes() > node.nbytes()) node = node.clone();
}

// Nodes without a right sibling: what is to their right is all that there is of it.
Tensor TreeSum::take() {
  torch::NoGradGuard no_grad;
  while (open_.size() > 1) merge_last(open_);
  const Tensor sum = open_.empty() ? Tensor() : std::move(open_.back());
  open_.clear();
  pieces_ = 0;
  return sum;
}

}  // namespace ditto
