// Replicas whose gradients are summed while backward still runs, by LibTorch's own reducer (S. Li et al., 2020,
// arXiv:2006.15704). It serves steps in which each rank runs one micro-batch; all others are left to the host's sum
// over copies.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <ditto/error.h>
#include <ditto/parallel/ordered_sum.h>
#include <ditto/parallel/strategy.h>

namespace ditto {
namespace {

using torch::Tensor;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

constexpr int64_t kBucketBytes = 16 << 20;

// The reducer's own hook divides by the number of ranks; the run's loss is the sum of the ranks' losses.
class SumHook final : public c10d::CommHookInterface {
 public:
  explicit SumHook(const Group& group) : transport_(group.transport()) {}
  Future runHook(c10d::GradBucket& bucket) override {
    std::vector<Tensor> list{bucket.getBufferRef()};
    return transport_->allreduce(list)->getFuture();
  }
  Tensor parseHookResult(const c10::IValue& result) override { return c10d::detail::parseCppCommHookResult(result); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> transport_;
};

// The same sum in the order of ranks, which is that of micro-batches, or as a tree over them. Pieces travel while
// backward runs: a bucket's to their owners as it fills, and their sums to all as the next one does.
class OrderedHook final : public c10d::CommHookInterface {
 public:
  OrderedHook(const Group& group, SumOrder order) : group_(group), order_(order) {}
  Future runHook(c10d::GradBucket& bucket) override {
    if (!pending_.empty()) spread(pending_.back());
    const Tensor& gradients = bucket.getBufferRef();
    auto& sum = pending_.emplace_back(OrderedSum(group_, gradients.numel(), order_), gradients.numel()).sum;
    sum.send(gradients, group_.size());
    auto nothing_to_wait_for = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    nothing_to_wait_for->markCompleted(gradients);
    return nothing_to_wait_for;
  }
  Tensor parseHookResult(const c10::IValue&) override {
    auto& next = pending_.front();
    if (!next.whole) spread(next);
    const Tensor result = next.whole().narrow(0, 0, next.numel);
    pending_.pop_front();
    return result;
  }

 private:
  struct Pending {
    OrderedSum sum;
    int64_t numel;
    std::function<Tensor()> whole = {};  // waits for it, and for what fills up the last owner's piece
  };
  void spread(Pending& one) {
    one.sum.receive();
    const Tensor own = one.sum.take();
    const int64_t piece = (one.numel + group_.size() - 1) / group_.size();
    one.whole =
        group_.begin_all_gather(own.numel() == piece ? own : torch::constant_pad_nd(own, {0, piece - own.numel()}));
  }
  const Group& group_;
  const SumOrder order_;
  std::deque<Pending> pending_;
};

// Regrouping after the first step would change the order of a library's sums, and with it the bits after a resume.
class FixedReducer final : public c10d::Reducer {
 public:
  FixedReducer(const std::vector<Tensor>& leaves, std::vector<std::vector<size_t>> buckets, const Group& group)
      : Reducer(leaves, std::move(buckets), group.transport(), std::vector<bool>(leaves.size(), false), kBucketBytes,
                false, true, {}, kBucketBytes, false, false, {}) {
    has_rebuilt_bucket_ = true;
  }
  bool waits_for_gradients() const { return require_finalize_; }
};

// Backward reaches the units in this order.
int64_t place(const Unit& unit) {
  switch (unit.kind) {
    case Unit::objective: return 0;
    case Unit::head: return 1;
    case Unit::Kind::block: return 1'000'000'000 - unit.block;
    case Unit::tokens: return 2'000'000'000;
    case Unit::condition: return 2'000'000'001;
  }
  return 0;
}

// Indices of leaves, in buckets that are filled in the order of backward. A bucket has one dtype.
std::vector<std::vector<size_t>> fill_buckets(const std::vector<const LayoutEntry*>& entries) {
  std::vector<size_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place(entries[a]->unit) < place(entries[b]->unit); });
  std::vector<std::vector<size_t>> buckets;
  int64_t bytes = 0;
  for (const size_t i : order) {
    const Tensor& leaf = entries[i]->tensor;
    const int64_t more = static_cast<int64_t>(leaf.nbytes());
    const bool fits = !buckets.empty() && bytes + more <= kBucketBytes &&
                      entries[buckets.back().front()]->tensor.scalar_type() == leaf.scalar_type();
    if (!fits) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().push_back(i);
    bytes += more;
  }
  return buckets;
}

class Ddp final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  Ddp(const Options&, const Needs& needs)
      : mesh_(*needs.mesh),
        group_(mesh_.group(Axis::replicate)),
        deterministic_(needs.deterministic),
        sum_order_(needs.sum_order) {}

  std::optional<Axis> axis() const override { return Axis::replicate; }

  void shard(Layout& layout) override {
    std::vector<const LayoutEntry*> entries;
    for (const auto& entry : layout.entries) {
      if (!entry.tensor.requires_grad()) continue;
      leaves_.push_back(entry.parameter.leaf());
      entries.push_back(&entry);
    }
    // With another data axis beside it, a rank's neighbours in the order of micro-batches are not in this group alone;
    // and the stages of a pipeline run several backwards a step.
    if (!group_.transport() || mesh_.data_ranks() > group_.size() || mesh_.size(Axis::pipeline) > 1 || leaves_.empty())
      return;
    reducer_ = std::make_unique<FixedReducer>(leaves_, fill_buckets(entries), group_);
    if (deterministic_)
      reducer_->register_comm_hook(std::make_unique<OrderedHook>(group_, sum_order_));
    else
      reducer_->register_comm_hook(std::make_unique<SumHook>(group_));
  }

  AxisSet sums(const LayoutEntry&, const StepPlan& plan) const override {
    return serves(plan) ? AxisSet{Axis::replicate} : AxisSet();
  }

  void begin_step(const StepPlan& plan) override {
    if (!serves(plan)) return;
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({});
  }

  // A leaf that had no part in the loss gets a gradient of nothing, so that the buckets behind it can leave.
  void sync_gradients() override {
    if (!reducer_ || !reducer_->waits_for_gradients()) return;
    torch::autograd::variable_list roots, gradients;
    for (const Tensor& leaf : leaves_) {
      if (leaf.grad().defined()) continue;
      roots.push_back(leaf);
      // x + (-0) is x, whatever x is; a tree's sums begin with +0
      gradients.push_back(torch::full_like(leaf, sum_order_ == SumOrder::tree ? 0.0 : -0.0));
    }
    torch::autograd::backward(roots, gradients);
  }

 private:
  bool serves(const StepPlan& plan) const {
    return reducer_ && plan.phase == Phase::train && plan.accumulations == 1 && plan.micro_batches == group_.size();
  }

  const Mesh& mesh_;
  const Group& group_;
  const bool deterministic_;
  const SumOrder sum_order_;
  std::vector<Tensor> leaves_;
  std::unique_ptr<FixedReducer> reducer_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Ddp, "ddp", "1.0.0", "Apache-2.0",
             "replicas; gradients summed while backward runs")
