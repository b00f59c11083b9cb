// Replicas, or tokens cut with all keys gathered, that break one promise of the interface, as the options say.
#include <numeric>

#include <torch/types.h>

#include <ditto/parallel/token_cut.h>

namespace {

using namespace ditto;
using torch::Tensor;

struct FaultyOptions {
  std::string fault = "none", serves = "replicate";
  void read(OptionReader& option) {
    option("fault", fault, "the promise to break");
    option("serves", serves, "the axis").one_of({"replicate", "context"});
  }
};

class Faulty final : public ParallelStrategy {
 public:
  using Options = FaultyOptions;
  Faulty(const Options& o, const Needs& needs) : options_(o), mesh_(*needs.mesh) {
    if (o.serves == "context") cut_.emplace(needs);
  }

  std::optional<Axis> axis() const override { return cut_ ? Axis::context : Axis::replicate; }
  void shard(Layout& layout) override { layout_ = &layout; }

  // --- replicas: gradients are summed at the end of the step ---
  AxisSet sums(const LayoutEntry&, const StepPlan&) const override {
    const bool says = options_.fault != "sums unsaid" && options_.fault != "marks in the step";
    return !cut_ && says ? AxisSet{Axis::replicate} : AxisSet();
  }
  void sync_gradients() override {
    if (cut_ || options_.fault == "sums nothing") return;
    torch::NoGradGuard no_grad;
    for (auto& entry : layout_->entries) {
      auto& grad = entry.tensor.mutable_grad();
      if (!grad.defined()) grad = torch::zeros_like(entry.tensor.detach());
      grad = mesh_.group(Axis::replicate).all_reduce(grad.contiguous());
      if (options_.fault == "mean") grad.div_(mesh_.size(Axis::replicate));
      if (options_.fault == "marks in the step") entry.summed.insert(Axis::replicate);
    }
  }

  // --- tokens ---
  void split(Stream& stream) override {
    if (cut_) cut_->split(stream);
  }
  void join(Stream& stream) override {
    if (cut_ && options_.fault != "joins nothing") cut_->join(stream);
  }
  TokenGather wrap_token_gather(TokenGather gather) override {
    if (!cut_ || options_.fault == "gathers nothing") return gather;
    return [this, gather](const Tensor& x, const Stream& stream) { return cut_->gather(gather(x, stream), stream); };
  }
  AttentionOp wrap_attention(AttentionOp op) override {
    if (!cut_) return op;
    op.run = [this, inner = op.run](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return inner(call);
      const auto& group = cut_->group();
      auto whole = call;
      for (auto& part : whole.parts) {
        const auto lengths = cut_->lengths(part.tokens);
        for (Tensor* x : {&part.q, &part.k, &part.v}) *x = transposed::all_gather(*x, group, 1, lengths);
        part.key_mask_BS = options_.fault == "ignores masks" ? Tensor() : whole_mask(part.key_mask_BS, lengths, group);
      }
      auto outputs = inner(whole);
      for (size_t i = 0; i < outputs.size(); ++i) {
        const auto lengths = cut_->lengths(call.parts[i].tokens);
        const auto first = std::accumulate(lengths.begin(), lengths.begin() + group.rank(), int64_t{0});
        outputs[i] = outputs[i].narrow(1, first, call.parts[i].q.size(1));
      }
      return outputs;
    };
    return op;
  }

 private:
  const FaultyOptions options_;
  const Mesh& mesh_;
  std::optional<TokenCut> cut_;
  Layout* layout_ = nullptr;
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, Faulty, "faulty_parallel", "1.0.0", "Apache-2.0", "breaks one promise")
