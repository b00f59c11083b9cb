// Sums with one order: what kernels share whose bits depend on the operands and on fixed leaves, and on nothing else
// (plugins/kernels/exact on processors, plugins/kernels/cuda on GPUs). Headers alone, for nvcc too; no standard
// library's functions, as it is compiled once for each instruction set.
//
// The rule: a sum over a dim is a binary tree over fixed leaves of the dim. A leaf is the chain of fused multiply-adds
// (or additions) of its terms in order, from +0. Node (l, i) covers leaves [i 2^l, (i + 1) 2^l) and is the sum of its
// left and its right half; a half beyond the end does not exist, and then the node is the other half. Gradients that
// are sums have +0 added at the end, so that terms of zero (masked or padded tokens) do not show in the sign of a zero.
#pragma once

#include <cstdint>

namespace ditto::exact {

using Index = std::int64_t;

// How a sum goes through its dim: runs of consecutive numbers, one after another, cut into leaves. After each leaf so
// many open left halves are added to what it completes. `end` counts along the runs.
struct Run {
  Index start, length;
};
struct Leaf {
  Index end;
  int merges;
};
struct Order {
  const Run* runs;
  Index run_count;
  const Leaf* leaves;
  Index leaf_count;
};

static inline int merges_after(Index leaf, Index count) {  // of a binary tree of so many leaves
  int n = 0;
  for (Index b = leaf; b > 0 && (leaf + 1 == count || (b & 1)); b >>= 1) n += static_cast<int>(b & 1);
  return n;
}
static inline Index least(Index a, Index b) { return a < b ? a : b; }
static inline Index most(Index a, Index b) { return a > b ? a : b; }
static inline Index parts(Index size, Index length) { return (size + length - 1) / length; }

constexpr int kMostOpen = 64;  // open nodes of a tree: two trees, one within the other, of up to 2^32 leaves each

}  // namespace ditto::exact
