// Context parallelism for video, in the manner of NeMo's ST-DiT (arXiv:2503.14378): tokens are cut by whole frames.
// Spatial attention stays on its rank; temporal attention trades places for frames by all-to-all, and is then local;
// full attention, also of several sequences, goes around a ring. Cuts no heads. What has not a frame and a place for
// every rank (a picture, a short clip, a pack) is cut by tokens instead, and all attention goes around the ring.
//
// Legend: B samples, T tokens, F frames, P places of a frame, N heads, K head width.
#include <numeric>

#include <torch/types.h>

#include <ditto/parallel/attention_of_nodes.h>
#include <ditto/parallel/ring_attention.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {
namespace {

using torch::Tensor;

class SpatioTemporal final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  SpatioTemporal(const Options&, const Needs& needs) : cut_(needs, TokenCut::Unit::frame) {}

  std::optional<Axis> axis() const override { return Axis::context; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override { check_places(layout, cut_.group(), "parallel.context"); }

  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return inner.run(call);  // text is whole on every rank
      check_call(call);
      const bool around = call.pattern == Pattern::full || !cut_.by_frames(call.parts[0].tokens);
      if (!around) return call.pattern == Pattern::spatial ? spatial(inner, call) : temporal(inner, call);
      if (cut_.in_leaves()) return attention_of_nodes(call, cut_.leaves(call.parts[0].tokens), Keys::slices, inner);
      std::vector<std::vector<int64_t>> lengths;
      for (const auto& part : call.parts) lengths.push_back(cut_.lengths(part.tokens));
      return ring_attention(call, lengths, cut_.group(), inner);
    };
    return op;
  }

  UnitRun wrap_unit(UnitRun run) override { return cut_.wrap(std::move(run)); }
  AxisSet sums(const LayoutEntry&, const StepPlan&) const override { return cut_.sums(); }

  TokenGather wrap_token_gather(TokenGather gather) override {
    return [this, gather](const Tensor& x, const Stream& stream) { return cut_.gather(gather(x, stream), stream); };
  }
  void split(Stream& stream) override { cut_.split(stream); }
  void join(Stream& stream) override { cut_.join(stream); }

 private:
  static int64_t places_of(const Grid& grid) { return grid.rows * grid.columns; }

  Tensors spatial(const AttentionOp& op, AttentionCall call) const {
    auto& part = call.parts[0];
    part.tokens.grid.frames = part.q.size(1) / places_of(part.tokens.grid);
    return op.run(call);
  }

  // The ranks' shares of the places are as equal as may be.
  std::vector<int64_t> share_of(int64_t places) const {
    const int64_t ranks = cut_.group().size();
    std::vector<int64_t> share;
    for (int64_t i = 0; i < ranks; ++i) share.push_back((i + 1) * places / ranks - i * places / ranks);
    return share;
  }

  Tensors temporal(const AttentionOp& op, AttentionCall call) const {
    const auto& group = cut_.group();
    auto& part = call.parts[0];
    auto& grid = part.tokens.grid;
    const int64_t places = places_of(grid), heads = part.q.size(2), of_keys = part.k.size(2);
    auto frames = cut_.lengths(part.tokens);
    for (int64_t& tokens : frames) tokens /= places;
    const auto share = share_of(places);
    grid.rows = 1;
    grid.columns = share[static_cast<size_t>(group.rank())];
    const auto qkv_BFPHK = torch::cat({part.q, part.k, part.v}, 2).unflatten(1, {-1, places});
    const auto all = transposed::all_to_all(qkv_BFPHK, group, 2, share, 1, frames)
                         .flatten(1, 2)
                         .split_with_sizes({heads, of_keys, of_keys}, 2);
    part.q = all[0].contiguous(), part.k = all[1].contiguous(), part.v = all[2].contiguous();
    if (part.key_mask_BS.defined()) {
      const auto mask_BFP = part.key_mask_BS.to(torch::kByte).unflatten(1, {-1, places});
      part.key_mask_BS = group.all_to_all(mask_BFP, 2, share, 1, frames).flatten(1, 2).to(torch::kBool);
    }
    const auto out_BFPNK = op.run(call).at(0).unflatten(1, {grid.frames, -1});
    return {transposed::all_to_all(out_BFPNK, group, 1, frames, 2, share).flatten(1, 2)};
  }

  TokenCut cut_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::SpatioTemporal, "spatiotemporal", "1.0.0", "Apache-2.0",
             "video cut by frames; all-to-all in time, ring for full attention")
