// The rule of the tree on ranks that share the leaves of a dim (docs/layout_rules.md, One number): each hands in its
// largest whole nodes, and whoever owns the sum merges siblings.
//
// The rule that goes with it, in the place of the rule of transposition: what is whole is whole on every member, and so
// is its gradient. A copy's gradient is never summed over copies; what members compute with their own leaves is summed
// where it is made (outputs), or where its inputs come from (gradients of inputs).
#pragma once

#include <memory>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/parallel/mesh.h>

namespace ditto {

// Leaves [begin, end) of a dim, or the node of the tree that covers just them.
struct LeafRun {
  int64_t begin, end;
};

// The largest whole nodes of a tree over `leaves` leaves that a run is made of, in order.
DITTO_API std::vector<LeafRun> whole_nodes(const LeafRun& run, int64_t leaves);

// The tree's sum, from nodes that cover its leaves, in order. Tensors of one shape, changed in place.
DITTO_API torch::Tensor sum_of_nodes(const std::vector<LeafRun>& nodes, const Tensors& values, int64_t leaves);

// Which leaves of a dim each member of a group has.
class DITTO_API LeafShare {
 public:
  // A run for each member, not empty; together all leaves. The group outlives it.
  LeafShare(const Group& group, std::vector<LeafRun> runs);
  // Runs in the order of members, as equal as may be. Throws Error(config) about `option` where there are fewer leaves
  // than members; `of` says whose they are.
  static LeafShare equal(const Group& group, int64_t leaves, const std::string& option, const std::string& of);

  const Group& group() const { return *group_; }
  int64_t leaves() const { return leaves_; }
  const std::vector<LeafRun>& runs() const { return runs_; }
  const LeafRun& run() const { return runs_[static_cast<size_t>(group_->rank())]; }
  std::vector<LeafRun> nodes(int member) const { return whole_nodes(runs_[static_cast<size_t>(member)], leaves_); }
  std::vector<LeafRun> nodes() const { return nodes(group_->rank()); }

 private:
  const Group* group_;
  std::vector<LeafRun> runs_;
  int64_t leaves_ = 0;
};

// How a sample's tokens lie on ranks.
struct DITTO_API TokenLeaves {
  LeafShare share;
  int64_t leaf = 0;    // tokens of one; of the last one, what is left
  int64_t tokens = 0;  // of the whole sample

  int64_t begin(int member) const;
  // Tokens of each member's run, and of each of this member's nodes.
  std::vector<int64_t> lengths() const;
  std::vector<int64_t> node_lengths() const;
};

// Differentiable, called by all members. Where `lengths` are given, members' parts of `dim` have these lengths.
namespace replicated {

using Share = std::shared_ptr<const LeafShare>;
// A tensor for each of this member's nodes -> their sum, on every member; backward gives each node the sum's gradient.
DITTO_API torch::Tensor sum(const Tensors& nodes, const Share& share);
// The same, of which every member gets its part; backward gathers.
DITTO_API torch::Tensor sum(const Tensors& nodes, const Share& share, int64_t dim, const std::vector<int64_t>& lengths);
// One for each of this member's nodes, which it is to be computed with alone; backward sums the nodes' gradients.
DITTO_API Tensors copies(const torch::Tensor& x, const Share& share);
// The same of what members have parts of: gathered; backward sums, and gives every member its part.
DITTO_API Tensors copies(const torch::Tensor& part, const Share& share, int64_t dim,
                         const std::vector<int64_t>& lengths);
// Members' parts put together; backward takes the own part of the gradient. And the way back.
DITTO_API torch::Tensor gather(const torch::Tensor& part, const Group& group, int64_t dim,
                               const std::vector<int64_t>& lengths);
DITTO_API torch::Tensor part(const torch::Tensor& whole, const Group& group, int64_t dim,
                             const std::vector<int64_t>& lengths);

}  // namespace replicated

}  // namespace ditto
