// How a sample's tokens lie on the ranks of the context axis: what all strategies of that axis share.
//
// Legend: B samples, T tokens.
#pragma once

#include <memory>
#include <vector>

#include <ditto/parallel/replicated.h>
#include <ditto/parallel/strategy.h>

namespace ditto {

// What strategies tell ops of a block is forgotten when it ends. One may be run inside of another: in a backward that
// computes it again.
class RestoredLeaves {
 public:
  explicit RestoredLeaves(LeavesHere& here) : here_(here), before_(here) {}
  ~RestoredLeaves() { here_ = before_; }
  RestoredLeaves(const RestoredLeaves&) = delete;
  RestoredLeaves& operator=(const RestoredLeaves&) = delete;

 private:
  LeavesHere& here_;
  const LeavesHere before_;
};

// Every rank has a slice of the tokens, in the order of ranks. A sample's slices are as equal as whole units allow. A
// pack's are chosen so that the sums over their tokens of the length of a token's own sample are: what attention costs.
class DITTO_API TokenCut {
 public:
  enum class Unit {
    token,
    frame,  // no frame lies on two ranks, where there is a frame and a place for every rank; else as token
  };
  // Throws Error(config) for a model that is not token-local.
  TokenCut(const ParallelStrategy::Needs& needs, Unit unit = Unit::token);

  const Group& group() const { return group_; }
  // Under run.numerics = "one", on several ranks: slices are runs of leaves, and the rule is that of replicated.h.
  bool in_leaves() const { return token_leaf_ > 0; }
  std::shared_ptr<const TokenLeaves> leaves(const Sequence& sequence) const;
  // Then ops in blocks are told of the slices; and a gradient that is summed along the axis is summed where it is made.
  UnitRun wrap(UnitRun run) const;
  AxisSet sums() const { return in_leaves() ? AxisSet{Axis::context} : AxisSet{}; }
  // Whether this sequence is cut by whole frames: a picture, a short clip and a pack are not.
  bool by_frames(const Sequence& sequence) const;
  // Its tokens on each rank; none has no token. Throws Error(config) where there are too few.
  std::vector<int64_t> lengths(const Sequence& sequence) const;

  enum class Constants {
    cut,    // attention works on this rank's tokens
    whole,  // attention works on all tokens, and position tables are for it
  };
  // Leaves this rank's slice of the fields with tokens, each cut as its sequence is, and sets first_token. Throws
  // Error(shape) for a field that has another number of tokens than its grid, or pack; and, in leaves and by frames,
  // Error(config) for one with tokens of its own.
  void split(Stream& stream, Constants constants = Constants::cut) const;
  // Makes the evolving fields whole again, each by one all-gather (in backward: one reduce-scatter; in leaves nothing).
  void join(Stream& stream) const;
  // x [B, T here, …] -> [B, T, …], of the stream's own tokens
  torch::Tensor gather(const torch::Tensor& x, const Stream& stream) const;

 private:
  const Group& group_;
  Unit unit_;
  int64_t token_leaf_;
};

// Of what cuts tokens of each sequence by itself, around layers: throws Error(config) that names `option` for a block
// with a layer of several sequences at once (Split::side_by_side).
DITTO_API void refuse_side_by_side(const Layout& layout, const std::string& option, const std::string& remedy);

// A mask [B, S here] -> of all members' keys, [B, S]; undefined stays so.
DITTO_API torch::Tensor whole_mask(const torch::Tensor& mask_BS, const std::vector<int64_t>& lengths,
                                   const Group& group);

// For strategies that cut a sample's places among the group's ranks: throws Error(config) that names `option` and the
// layer, where a block has one that looks from place to place (CutLayer::token_local).
DITTO_API void check_places(const Layout& layout, const Group& group, const std::string& option);

// For strategies that deal heads out to the context ranks: throws Error(config) unless the degree divides the heads
// that a tensor cut leaves here, of queries alone or of keys and values as well.
enum class DealtHeads { queries, all };
DITTO_API void check_heads(const Layout& layout, const Mesh& mesh, DealtHeads which);

}  // namespace ditto
