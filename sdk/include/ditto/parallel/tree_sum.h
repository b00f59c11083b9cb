// The rule of the tree (docs/layout_rules.md, One number): pieces that come one after another, added as a binary tree
// over their numbers. Node (l, i) covers pieces [i 2^l, (i + 1) 2^l): its left half plus its right half, where a half
// that does not exist is left out.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// What order gradients of micro-batches are summed in.
enum class SumOrder {
  chain,  // ((g0 + g1) + g2) + …: as accumulation on one rank does
  tree,   // (g0 + g1) + (g2 + g3), …: a micro-batch of 2^k samples is a node, so that its size changes no bit
};

// A tree over tensors of one shape and dtype. It holds one of them for each bit that is set in the number of pieces so
// far: after piece j of J, at most floor(log2(J)) beside the next one.
class DITTO_API TreeSum {
 public:
  // The next piece, which is changed in place from now on: nobody else may use its memory.
  void add(torch::Tensor piece);
  // Pieces that are views get memory of their own, where that is larger than they are: what they are views of can go.
  void own();
  // The sum, undefined of no pieces. The next piece is the first one again.
  torch::Tensor take();
  int64_t pieces() const { return pieces_; }

 private:
  int64_t pieces_ = 0;
  std::vector<torch::Tensor> open_;  // nodes whose sibling has not come, the largest first
};

}  // namespace ditto
