// Context parallelism for video, in the manner of NeMo's ST-DiT (arXiv:2503.14378): tokens are cut by whole frames.
// Spatial attention stays on its rank; temporal attention trades places for frames by all-to-all, and is then local;
// full attention goes around a ring. Cuts no heads. What has not a frame and a place for every rank (a picture, a short
// clip, a pack) is cut by tokens instead, and all attention goes around the ring.
//
// Legend: B samples, T tokens, F frames, P places of a frame, N heads, K head width.
#include <numeric>

#include <torch/torch.h>

#include <ditto/parallel/ring_attention.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {
namespace {

using torch::Tensor;

class SpatioTemporal final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  SpatioTemporal(const Options&, const Needs& needs) : by_frames_(needs, TokenCut::Unit::frame), by_tokens_(needs) {}

  std::optional<Axis> axis() const override { return Axis::context; }

  void shard(Layout& layout) override { check_places(layout, by_tokens_.group(), "parallel.context"); }

  AttentionOp wrap_attention(AttentionOp op) override {
    const auto inner = std::make_shared<const AttentionOp>(op);
    op.run = [this, inner](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
      if (shape.pattern == Pattern::cross) return inner->run(q, k, v, shape);  // text is whole on every rank
      const auto& cut = cut_of(shape.grid, shape.packing);
      if (&cut == &by_tokens_ || shape.pattern == Pattern::full)
        return ring_attention(q, k, v, shape, cut.lengths(shape.grid, shape.packing), cut.group(), inner);
      return shape.pattern == Pattern::spatial ? spatial(*inner, q, k, v, shape) : temporal(*inner, q, k, v, shape);
    };
    return op;
  }

  TokenGather wrap_token_gather(TokenGather gather) override {
    return [this, gather](const Tensor& x, const Stream& stream) {
      return cut_of(stream.grid, stream.packing).gather(gather(x, stream), stream);
    };
  }
  void split(Stream& stream) override { cut_of(stream.grid, stream.packing).split(stream); }
  void join(Stream& stream) override { cut_of(stream.grid, stream.packing).join(stream); }

 private:
  static int64_t places_of(const Grid& grid) { return grid.rows * grid.columns; }

  const TokenCut& cut_of(const Grid& grid, const std::shared_ptr<const Packing>& packing) const {
    const int64_t ranks = by_frames_.group().size();
    return packing || grid.frames < ranks || places_of(grid) < ranks ? by_tokens_ : by_frames_;
  }

  Tensor spatial(const AttentionOp& op, const Tensor& q, const Tensor& k, const Tensor& v, AttentionShape shape) const {
    shape.grid.frames = q.size(1) / places_of(shape.grid);
    return op.run(q, k, v, shape);
  }

  // The ranks' shares of the places are as equal as may be.
  std::vector<int64_t> share_of(int64_t places) const {
    const int64_t ranks = by_frames_.group().size();
    std::vector<int64_t> share;
    for (int64_t i = 0; i < ranks; ++i) share.push_back((i + 1) * places / ranks - i * places / ranks);
    return share;
  }

  Tensor temporal(const AttentionOp& op, const Tensor& q, const Tensor& k, const Tensor& v,
                  AttentionShape shape) const {
    const auto& group = by_frames_.group();
    const int64_t places = places_of(shape.grid);
    auto frames = by_frames_.lengths(shape.grid, shape.packing);
    for (int64_t& tokens : frames) tokens /= places;
    const auto share = share_of(places);
    shape.grid.rows = 1;
    shape.grid.columns = share[static_cast<size_t>(group.rank())];
    const auto qkv_BFPNK = torch::stack({q, k, v}).unflatten(2, {-1, places});
    const auto all = transposed::all_to_all(qkv_BFPNK, group, 3, share, 2, frames).flatten(2, 3).unbind(0);
    if (shape.key_mask_BS.defined()) {
      const auto mask_BFP = shape.key_mask_BS.to(torch::kByte).unflatten(1, {-1, places});
      shape.key_mask_BS = group.all_to_all(mask_BFP, 2, share, 1, frames).flatten(1, 2).to(torch::kBool);
    }
    const auto out_BFPNK = op.run(all[0], all[1], all[2], shape).unflatten(1, {shape.grid.frames, -1});
    return transposed::all_to_all(out_BFPNK, group, 1, frames, 2, share).flatten(1, 2);
  }

  TokenCut by_frames_, by_tokens_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::SpatioTemporal, "spatiotemporal", "1.0.0", "Apache-2.0",
             "video cut by frames; all-to-all in time, ring for full attention")
