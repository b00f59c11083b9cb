// An attention unit under run.numerics = "one", whose heads the context ranks share: tokens are gathered for each node
// of heads, and the nodes' gradients are summed (replicated.h). Weights are whole on every rank, and so are their
// gradients.
#pragma once

#include <memory>
#include <vector>

#include <ditto/context.h>
#include <ditto/nn/attention_unit.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {

// This rank's part of a tensor's dim whose parts are shared by a group one by one: of each of them what every member
// has as much of. Backward gathers.
torch::Tensor own_share(const torch::Tensor& x, const std::vector<int64_t>& parts, int64_t dim, const Group& group);

// The unit's two maps while it runs: `heads` makes this rank's heads of all tokens, `rows` takes all heads of this
// rank's tokens. In between a sample's tokens are all here, and ops are told so.
class UnitOfNodes {
 public:
  // Of `here` it is read how tokens lie between layers, and there it is said that they are whole inside.
  UnitOfNodes(const AttentionUnitPart& part, const Mesh& mesh, LeavesHere& here, Context& parameters);
  ~UnitOfNodes();
  UnitOfNodes(const UnitOfNodes&) = delete;
  UnitOfNodes& operator=(const UnitOfNodes&) = delete;

 private:
  void share_heads(const Mesh& mesh, Context& parameters);
  void trade_tokens(const Group& group);
  std::shared_ptr<const TokenLeaves>& inside() const;  // what ops are told

  LinearModule& heads_;
  const Linear rows_;  // none: nobody reads what the part attended to
  LeavesHere& here_;
  const std::shared_ptr<const TokenLeaves> slices_, between_;
  const Parameter weight_, bias_;
  const std::shared_ptr<const LinearModule::Term> term_;
  const std::shared_ptr<const CutLayer::Nodes> nodes_;
  LinearModule::Exchange rows_before_;
};

}  // namespace ditto
