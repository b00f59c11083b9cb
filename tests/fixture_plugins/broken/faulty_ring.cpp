// A ring that counts the gradients of what a second sequence's tokens are made of once a rank: it adds them up over the
// ranks that share a sample, and so does the sum over copies.
#include <ditto/parallel/ring_attention.h>
#include <ditto/parallel/token_cut.h>

namespace {

using namespace ditto;
using torch::Tensor;

class FaultyRing final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  FaultyRing(const Options&, const Needs& needs) : cut_(needs) {}

  std::optional<Axis> axis() const override { return Axis::context; }

  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op](const AttentionCall& call) {
      std::vector<std::vector<int64_t>> lengths;
      for (const auto& part : call.parts) lengths.push_back(cut_.lengths(part.tokens));
      return ring_attention(call, lengths, cut_.group(), inner);
    };
    return op;
  }

  void split(Stream& stream) override {
    for (auto& [name, extra] : stream.extra)
      if (extra.own && extra.tensor.requires_grad())
        extra.tensor.register_hook(
            [this](const Tensor& gradient) { return cut_.group().all_reduce(gradient.clone()); });
    cut_.split(stream);
  }
  void join(Stream& stream) override { cut_.join(stream); }

 private:
  TokenCut cut_;
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, FaultyRing, "faulty_ring", "1.0.0", "Apache-2.0",
             "counts gradients of a second sequence once a rank")
