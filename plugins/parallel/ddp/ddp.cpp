// Replicas whose gradients are summed while backward still runs, by LibTorch's own reducer (S. Li et al., 2020,
// arXiv:2006.15704). It serves steps in which each rank runs one micro-batch; all others are left to the host's sum
// over copies.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <ditto/error.h>
#include <ditto/parallel/in_place_sum.h>
#include <ditto/parallel/ordered_sum.h>
#include <ditto/parallel/strategy.h>
#include <ditto/parallel/waiting.h>

namespace ditto {
namespace {

using torch::Tensor;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

constexpr int64_t kBucketBytes = 16 << 20;

// For the reducer, which waits for it: the hooks wait themselves, when they are asked for the result.
Future completed(const Tensor& gradients) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->markCompleted(gradients);
  return future;
}

// The reducer's own hook divides by the number of ranks; the run's loss is the sum of the ranks' losses.
class SumHook final : public c10d::CommHookInterface {
 public:
  explicit SumHook(const Group& group) : transport_(group.transport()) {}
  Future runHook(c10d::GradBucket& bucket) override {
    std::vector<Tensor> list{bucket.getBufferRef()};
    pending_.push_back({transport_->allreduce(list), list[0]});
    return completed(list[0]);
  }
  Tensor parseHookResult(const c10::IValue&) override {
    const auto [work, sum] = std::move(pending_.front());
    pending_.pop_front();
    work->wait();
    return sum;
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> transport_;
  std::deque<std::pair<c10::intrusive_ptr<c10d::Work>, Tensor>> pending_;
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
    return completed(gradients);
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

// The same sum, to the bit, where the buckets are in memory that all ranks see: a rank adds the others' numbers onto
// its own piece of the bucket itself, and copies the sums of the other pieces from theirs. Counted as what OrderedHook
// does.
class InPlaceHook final : public c10d::CommHookInterface {
 public:
  InPlaceHook(const Group& group, Traffic& traffic, SumsInPlace& memory)
      : group_(group), traffic_(traffic), memory_(memory) {}
  Future runHook(c10d::GradBucket& bucket) override {
    if (!pending_.empty()) sum(pending_.back());
    const Tensor& gradients = bucket.getBufferRef();
    auto& one = pending_.emplace_back();
    one.numel = gradients.numel();
    one.width = static_cast<int64_t>(gradients.element_size());
    one.due = begin(one, "exchange", one.numel - length_of(one, group_.rank()), one.exchange);
    one.sum = memory_.begin_sum(gradients);
    return completed(gradients);
  }
  Tensor parseHookResult(const c10::IValue& gradients) override {
    auto& one = pending_.front();
    sum(one);
    wait(one.gather, one.due, [&] {
      one.sum->gather();
      if (pending_.size() == 1) one.sum->settle();
    });
    pending_.pop_front();
    return gradients.toTensor();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    int64_t numel = 0, width = 0;
    Traffic::Key exchange, gather;
    Clock::time_point due;
    std::unique_ptr<InPlaceSum> sum;
    bool is_summed = false;
  };
  int64_t length_of(const Pending& one, int member) const {
    const int64_t piece = (one.numel + group_.size() - 1) / group_.size();
    return std::min((member + 1) * piece, one.numel) - std::min(member * piece, one.numel);
  }
  Clock::time_point begin(const Pending& one, const char* op, int64_t leaving, Traffic::Key& key) {
    key = traffic_.add(group_.label(), op, leaving * one.width);
    return Clock::now() + traffic_.delay;
  }
  void sum(Pending& one) {
    if (std::exchange(one.is_summed, true)) return;
    wait(one.exchange, one.due, [&] { one.sum->sum(); });
    const int64_t piece = (one.numel + group_.size() - 1) / group_.size();
    one.due = begin(one, "all_gather", (group_.size() - 1) * piece, one.gather);
  }
  template <class Step>
  void wait(const Traffic::Key& key, Clock::time_point due, Step step) {
    struct Waiting {
      Waiting() { ++peer_calls().begun; }
      ~Waiting() { ++peer_calls().done; }
    } const waiting;
    const auto began = Clock::now();
    try {
      step();
    } catch (const c10::Error& error) {
      const std::string all = error.what_without_backtrace();
      throw Error(
          ErrorKind::distributed,
          "rank " + std::to_string(group_.rank()) + " of " + std::to_string(group_.size()) + " along " + group_.label(),
          key.op + " of gradients failed: " + all.substr(0, all.find('\n')),
          "a peer stopped or hangs: its own last message says why");
    }
    if (traffic_.delay.count() > 0) std::this_thread::sleep_until(due);
    traffic_.add_wait(key, Clock::now() - began);
  }
  const Group& group_;
  Traffic& traffic_;
  SumsInPlace& memory_;
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

// Null where the transport of these leaves is another.
SumsInPlace* memory_that_all_see(const std::vector<Tensor>& leaves, c10d::ProcessGroup& transport) {
  if (!std::all_of(leaves.begin(), leaves.end(), [](const Tensor& leaf) { return leaf.is_cpu(); })) return nullptr;
  if (transport.getBackendType() != c10d::ProcessGroup::BackendType::CUSTOM) return nullptr;
  return dynamic_cast<SumsInPlace*>(transport.getBackend(c10::DeviceType::CPU).get());
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
  bool exact() const override { return true; }

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
    auto* const memory = deterministic_ && sum_order_ == SumOrder::chain && group_.size() > 1
                             ? memory_that_all_see(leaves_, *group_.transport())
                             : nullptr;
    if (memory) ::setenv("DDP_DISABLE_COMM_MEM", "0", 1);  // the reducer asks the transport for its buckets' memory
    reducer_ = std::make_unique<FixedReducer>(leaves_, fill_buckets(entries), group_);
    if (memory)
      reducer_->register_comm_hook(std::make_unique<InPlaceHook>(group_, mesh_.traffic(), *memory));
    else if (deterministic_)
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
