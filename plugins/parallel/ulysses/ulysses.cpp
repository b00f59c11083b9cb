// Context parallelism by trading heads for tokens: attention runs over all tokens with a share of the heads
// (S. A. Jacobs et al., 2023, arXiv:2309.14509). Of each sequence one all-to-all brings q, k and v, one takes the
// result back. Fewer heads of keys than ranks are sent to several.
//
// Legend: B samples, T tokens, N heads, M heads of keys and values, K head width.
#include <numeric>

#include <torch/types.h>

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
  bool exact() const override { return true; }

  void shard(Layout& layout) override {
    check_places(layout, cut_.group(), "parallel.context");
    check_heads(layout, mesh_, DealtHeads::queries);
  }

  // Text is whole on every rank: its keys are here for the queries that are here.
  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op.run](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return inner(call);
      const auto& group = cut_.group();
      auto whole = call;
      for (auto& part : whole.parts) trade(part);
      const int64_t heads = call.parts.at(0).q.size(2) / group.size();
      if (call.bias.defined() && call.bias.size(1) > 1) whole.bias = call.bias.narrow(1, group.rank() * heads, heads);
      auto outputs = inner(whole);
      const std::vector<int64_t> of_heads(static_cast<size_t>(group.size()), heads);
      for (size_t i = 0; i < outputs.size(); ++i)
        outputs[i] = transposed::all_to_all(outputs[i], group, 1, cut_.lengths(call.parts[i].tokens), 2, of_heads);
      return outputs;
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
  // All tokens of this rank's heads, for this rank's tokens of all heads.
  void trade(AttentionPart& part) const {
    const auto& group = cut_.group();
    const int64_t ranks = group.size();
    const auto tokens = cut_.lengths(part.tokens);
    const Tensor k = for_ranks(part.k), v = for_ranks(part.v);
    const int64_t of_q = share_of(part.q.size(2)), of_k = k.size(2) / ranks;
    const auto by_rank = [&](const Tensor& x) { return x.unflatten(2, {ranks, -1}); };
    const auto qkv = torch::cat({by_rank(part.q), by_rank(k), by_rank(v)}, 3).flatten(2, 3);
    const std::vector<int64_t> heads(static_cast<size_t>(ranks), of_q + 2 * of_k);
    const auto all = transposed::all_to_all(qkv, group, 2, heads, 1, tokens).split_with_sizes({of_q, of_k, of_k}, 2);
    part.q = all[0].contiguous(), part.k = all[1].contiguous(), part.v = all[2].contiguous();
    part.key_mask_BS = whole_mask(part.key_mask_BS, tokens, group);
  }

  // Of each head as many copies as it takes for every rank to have the heads of its queries.
  Tensor for_ranks(const Tensor& x_BTMK) const {
    const int64_t heads = x_BTMK.size(2), ranks = cut_.group().size();
    return heads % ranks == 0 ? x_BTMK : x_BTMK.repeat_interleave(ranks / std::gcd(heads, ranks), 2);
  }

  int64_t share_of(int64_t heads) const {
    const int ranks = cut_.group().size();
    if (heads % ranks != 0)
      throw Error(ErrorKind::config, "parallel.context",
                  std::to_string(ranks) + " does not divide the " + std::to_string(heads) + " attention heads",
                  "use a degree that divides them, or context_plugin = \"ring\", which cuts no heads");
    return heads / ranks;
  }

  const Mesh& mesh_;
  TokenCut cut_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Ulysses, "ulysses", "1.0.0", "Apache-2.0", "tokens cut; heads traded for tokens")
