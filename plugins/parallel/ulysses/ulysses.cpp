// Context parallelism by trading heads for tokens: attention runs over all tokens with a share of the heads
// (S. A. Jacobs et al., 2023, arXiv:2309.14509). One all-to-all brings q, k and v, one takes the result back. Keys and
// values come with as many heads as queries: a model with fewer has repeated them.
//
// Legend: B samples, T tokens, N heads, K head width.
#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {
namespace {

using torch::Tensor;

class Ulysses final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  Ulysses(const Options&, const Needs& needs) : mesh_(*needs.mesh), cut_(needs) {}

  std::optional<Axis> axis() const override { return Axis::context; }

  void shard(Layout& layout) override {
    check_places(layout, cut_.group(), "parallel.context");
    check_heads(layout, mesh_, DealtHeads::queries);
  }

  // Text is whole on every rank: its keys are here for the queries that are here.
  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op.run](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
      if (shape.pattern == Pattern::cross) return inner(q, k, v, shape);
      const auto tokens = cut_.lengths(shape.grid, shape.packing);
      const auto heads = share_of(q.size(2));
      const auto& group = cut_.group();
      const auto qkv = transposed::all_to_all(torch::stack({q, k, v}), group, 3, heads, 2, tokens).unbind(0);
      auto whole = shape;
      whole.key_mask_BS = whole_mask(shape.key_mask_BS, tokens, group);
      return transposed::all_to_all(inner(qkv[0], qkv[1], qkv[2], whole), group, 1, tokens, 2, heads);
    };
    return op;
  }

  TokenGather wrap_token_gather(TokenGather gather) override {
    return [this, gather](const Tensor& x, const Stream& stream) { return cut_.gather(gather(x, stream), stream); };
  }
  void split(Stream& stream) override { cut_.split(stream); }
  void join(Stream& stream) override { cut_.join(stream); }

 private:
  // Each rank's heads.
  std::vector<int64_t> share_of(int64_t heads) const {
    const int ranks = cut_.group().size();
    if (heads % ranks != 0)
      throw Error(ErrorKind::config, "parallel.context",
                  std::to_string(ranks) + " does not divide the " + std::to_string(heads) + " attention heads",
                  "use a degree that divides them, or context_plugin = \"ring\", which cuts no heads");
    return std::vector<int64_t>(static_cast<size_t>(ranks), heads / ranks);
  }

  const Mesh& mesh_;
  TokenCut cut_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Ulysses, "ulysses", "1.0.0", "Apache-2.0", "tokens cut; heads traded for tokens")
