// Context parallelism by a ring: every rank keeps its tokens' queries, and keys and values go around (H. Liu et al.,
// 2023, arXiv:2310.01889). Cuts no heads. Under run.numerics = "one" every rank gathers them at once.
#include <ditto/parallel/attention_of_nodes.h>
#include <ditto/parallel/ring_attention.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {
namespace {

using torch::Tensor;

class RingParallel final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  RingParallel(const Options&, const Needs& needs) : cut_(needs) {}

  std::optional<Axis> axis() const override { return Axis::context; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override { check_places(layout, cut_.group(), "parallel.context"); }

  // Text is whole on every rank: its keys need no ring.
  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return inner.run(call);
      if (cut_.in_leaves()) return attention_of_nodes(call, cut_.leaves(call.parts.at(0).tokens), Keys::slices, inner);
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
  TokenCut cut_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::RingParallel, "ring", "1.0.0", "Apache-2.0",
             "tokens cut; keys and values passed around")
