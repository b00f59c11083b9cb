// The rule of order: numbers of several ranks summed as one rank would have summed them, to the last bit.
//
// Micro-batch j of a step is run by data rank j modulo n, so the ranks' numbers, taken in the order of ranks and
// accumulation after accumulation, are in the order of j. Every number has one owner, who adds what the ranks hand in
// one at a time, in that order, onto what is there: ((g0 + g1) + g2) + …, as accumulation on one rank does. The sum of
// each number by itself depends on nothing else: neither on n, nor on how numbers are dealt out to owners.
//
// With SumOrder::tree the owner adds them as a tree over j (tree_sum.h) instead, with the same exchanges. Beside what
// has just come, which is as much in either order, it then holds up to floor(log2(J)) + 1 times its own numbers, J
// micro-batches a step, where the chain holds them once; with one micro-batch a rank, for a moment only.
#pragma once

#include <ditto/parallel/mesh.h>
#include <ditto/parallel/tree_sum.h>

namespace ditto {

// The sum of flat tensors of `numel` numbers over the members of a group and over accumulations. send, receive and
// gather are called by every member, in the same order. Throws Error(distributed) as Group does.
class DITTO_API OrderedSum {
 public:
  // The group outlives it; numbers are dealt out equally.
  OrderedSum(const Group& group, int64_t numel, SumOrder order = SumOrder::chain);
  // Member i owns lengths[i] numbers, after those of the members before it; some may own none.
  OrderedSum(const Group& group, std::vector<int64_t> lengths, SumOrder order = SumOrder::chain);
  ~OrderedSum();

  // Starts an accumulation, and does not wait: x [numel], contiguous, unchanged until `receive`. Members 0 … active - 1
  // take part; the others are called too, to receive, and their x is read for its dtype and device only. `op` is what
  // the exchange is counted as.
  void send(const torch::Tensor& x, int active, const char* op = "exchange");
  // Ends the accumulation: what has come is added.
  void receive();
  // The sum so far, [numel], on every member. The next send starts from nothing.
  torch::Tensor gather();
  // The owner's part of it. The next send starts from nothing.
  torch::Tensor take();

  // The owner's part: numbers [begin, begin + length) of the sum; undefined before the first receive, and of a tree,
  // whose sum is made when it is taken.
  const torch::Tensor& own() const { return sum_; }
  int64_t begin() const { return start_of(group_->rank()); }
  int64_t length() const { return length_of(group_->rank()); }

 private:
  int64_t start_of(int member) const { return starts_[static_cast<size_t>(member)]; }
  int64_t length_of(int member) const { return start_of(member + 1) - start_of(member); }

  const Group* group_;
  std::vector<int64_t> starts_;  // one more than members
  int active_ = 0;
  std::function<torch::Tensor()> arrival_;
  SumOrder order_;
  torch::Tensor sum_;  // of a chain
  TreeSum tree_;
};

}  // namespace ditto
