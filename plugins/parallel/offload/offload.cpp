// Optimizer states and master weights in the host's memory, updated there (J. Ren et al., 2021, arXiv:2101.06840), or
// in both memories by a budget of bytes, each part updated where it lies (as Gemini's hybrid Adam does,
// arXiv:2108.05818). The optimizer, the average and the checkpoint see leaves in host memory; forward and backward see
// the device's.
//
// On a CPU the host's leaves are separate memory all the same, and the update's bits are those of a run without.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/backward_watch.h>
#include <ditto/parallel/strategy.h>

namespace ditto {
namespace {

using torch::Tensor;

// Copies between a GPU and pinned memory, one after another in a stream of their own: no queue of the GPU's other work
// waits for them, nor the host, but where it says so.
class Copies {
 public:
  explicit Copies(torch::Device gpu)
      : impl_(gpu.type()), stream_(impl_.getStreamFromGlobalPool(gpu, /*isHighPriority=*/false)) {}

  // Of what the current stream makes; its numbers are there after `wait`.
  Tensor down(const Tensor& from) {
    const auto to = torch::empty(from.sizes(), torch::TensorOptions(from.scalar_type()).pinned_memory(true));
    after_current();
    const c10::StreamGuard guard(stream_);
    to.copy_(from, /*non_blocking=*/true);
    from.record_stream(stream_);
    return to;
  }
  // `from` is pinned, and not written before `wait`.
  void up(const Tensor& from, Tensor to) {
    const c10::StreamGuard guard(stream_);
    to.copy_(from, /*non_blocking=*/true);
    goes_up_ = true;
  }
  void after_current() { recorded(current()).block(stream_); }
  void before_current() { recorded(stream_).block(current()); }
  void wait() {
    recorded(stream_).synchronize();
    goes_up_ = false;
  }
  bool goes_up() const { return goes_up_; }  // what went up since the host has waited

 private:
  c10::Stream current() const { return impl_.getStream(stream_.device()); }
  static c10::Event recorded(const c10::Stream& stream) {
    c10::Event event(stream.device_type());
    event.record(stream);
    return event;
  }
  const c10::impl::VirtualGuardImpl impl_;
  const c10::Stream stream_;
  bool goes_up_ = false;
};

class Offload final : public ParallelStrategy {
 public:
  struct Options {
    std::string offload = "optimizer";
    int64_t offload_bytes = 0;
    void read(OptionReader& option) {
      option("offload", offload, "what lies in the host's memory: optimizer states and fp32 weights, with their update")
          .one_of({"optimizer"})
          .changes(Effect::speed);
      option("offload_bytes", offload_bytes,
             "at most so many bytes of weights and optimizer states of a rank stay on the device, a weight counted "
             "with two states, as AdamW keeps; 0: none")
          .at_least(0)
          .changes(Effect::speed);
    }
  };

  Offload(const Options& options, const Needs& needs)
      : budget_(options.offload_bytes),
        mesh_(*needs.mesh),
        deterministic_(needs.deterministic),
        sum_order_(needs.sum_order),
        compute_(needs.compute),
        watch_([](const Unit&) {}, [this](const Unit& unit) { leave(unit); }) {}

  std::optional<Axis> axis() const override { return std::nullopt; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override {
    layout_ = &layout;
    int64_t left = budget_;
    for (const size_t index : in_order_of_units(layout)) {
      auto& entry = layout.entries[index];
      if (!entry.tensor.requires_grad()) continue;
      const int64_t bytes = kTensorsPerWeight * static_cast<int64_t>(entry.tensor.nbytes());
      if (bytes <= left)
        left -= bytes;
      else
        move(index);
    }
  }

  UnitRun wrap_unit(UnitRun run) override { return copies_ ? watch_.wrap(std::move(run)) : run; }

  void begin_step(const StepPlan& plan) override {
    watch_.reset();
    left_.clear();
    runs_ = plan.mine;
    for (auto& moved : moved_) moved.arriving.clear();
  }

  // Core is about to take up the accumulation's gradients of copies, and those of a tree; the others wait
  // for the last accumulation.
  void end_accumulation(int64_t, const StepPlan&) override {
    bring_gradients([this](const Moved& moved) { return is_summed_by_accumulations(entry_of(moved)); });
  }

  void sync_gradients() override {
    bring_gradients([](const Moved&) { return true; });
  }

  // Strategies that cut parameters read the layout's tensors themselves. What goes to a GPU is copied first, so that
  // the host may write its leaves again at once.
  void parameters_changed() override {
    torch::NoGradGuard no_grad;
    if (copies_ && copies_->goes_up()) copies_->wait();
    if (copies_) copies_->after_current();
    for (auto& moved : moved_) {
      if (!moved.values.defined()) continue;
      const auto host = entry_of(moved).tensor.detach();
      if (!copies_) {
        moved.values.detach().copy_(host);
        continue;
      }
      if (!moved.staged.defined())
        moved.staged = torch::empty(host.sizes(), torch::TensorOptions(moved.values.scalar_type()).pinned_memory(true));
      copies_->up(moved.staged.copy_(host), moved.values.detach());
    }
    if (copies_) copies_->before_current();
  }

 private:
  static constexpr int64_t kTensorsPerWeight = 3;

  struct Moved {
    size_t index;   // of the layout's entry, whose tensor is in host memory now
    Tensor values;  // what layers multiply with: the model's leaf, or the compute copy; undefined: another strategy's
    Tensor staged = {};                 // the same in pinned memory, on their way; undefined: they never were
    std::vector<Tensor> arriving = {};  // its gradients that are on their way to the host
  };

  // Ranks choose alike for what they share: conditioning, of which the stages of a pipeline may hold copies, is first.
  static std::vector<size_t> in_order_of_units(const Layout& layout) {
    std::vector<size_t> order(layout.entries.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return layout.entries[a].unit < layout.entries[b].unit; });
    return order;
  }

  void move(size_t index) {
    auto& entry = layout_->entries[index];
    const Tensor device = entry.tensor;
    if (device.is_cuda() && !copies_) copies_ = std::make_unique<Copies>(device.device());
    const auto options = torch::TensorOptions(device.scalar_type())
                             .device(device.is_meta() ? torch::kMeta : torch::kCPU)
                             .pinned_memory(device.is_cuda());
    const Tensor host = torch::empty(device.sizes(), options);
    if (!is_freed(device)) host.copy_(device.detach());
    entry.tensor = host.set_requires_grad(true);
    moved_.push_back({index, device.is_same(entry.parameter.leaf()) ? compute_values(entry) : Tensor()});
  }

  // The device keeps the compute copy alone, where layers multiply in another dtype than the leaf's.
  Tensor compute_values(const LayoutEntry& entry) const {
    const Tensor leaf = entry.parameter.leaf();
    if (leaf.scalar_type() == compute_) {
      if (is_freed(leaf)) fill_storage(leaf);
      return leaf;
    }
    const Tensor values = torch::empty(leaf.sizes(), leaf.options().dtype(compute_).requires_grad(false));
    entry.parameter.provide(values);
    free_storage(leaf);
    return values;
  }

  LayoutEntry& entry_of(const Moved& moved) const { return layout_->entries[moved.index]; }

  bool is_summed_by_accumulations(const LayoutEntry& entry) const {
    if (sum_order_ == SumOrder::tree && !entry.is_summed_over_data()) return true;
    return deterministic_ && std::any_of(kDataAxes.begin(), kDataAxes.end(), [&](Axis axis) {
             return mesh_.size(axis) > 1 && entry.is_copy(axis) && entry.summed.count(axis) == 0;
           });
  }

  // In the thread that runs backward: when it has left a unit for the last time in a step, the unit's gradients go to
  // the host while it computes those of others. One that comes later all the same is added.
  void leave(const Unit& unit) {
    if (!copies_ || ++left_[unit] < runs_) return;
    for (auto& moved : moved_)
      if (const auto& entry = entry_of(moved); entry.unit == unit && !is_summed_by_accumulations(entry)) send(moved);
  }

  // The model's leaf's, if it is there.
  void send(Moved& moved) {
    torch::NoGradGuard no_grad;
    auto& from = entry_of(moved).parameter.leaf().mutable_grad();
    if (!moved.values.defined() || !from.defined()) return;
    moved.arriving.push_back(from.is_cuda() ? copies_->down(from) : from);
    from.reset();
  }

  // From the models' leaves, and from where a strategy that cuts parameters has left them; the host waits once.
  template <class IsWanted>
  void bring_gradients(const IsWanted& is_wanted) {
    torch::NoGradGuard no_grad;
    bool waits = false;
    for (auto& moved : moved_) {
      if (!is_wanted(moved)) continue;
      auto& sum = entry_of(moved).tensor.mutable_grad();
      waits = waits || (sum.defined() && sum.is_cuda());
      if (sum.defined() && sum.is_cuda()) sum = copies_->down(sum);
      send(moved);
      waits = waits || !moved.arriving.empty();
    }
    if (waits && copies_) copies_->wait();
    for (auto& moved : moved_) {
      if (!is_wanted(moved)) continue;
      auto& sum = entry_of(moved).tensor.mutable_grad();
      for (const auto& gradient : std::exchange(moved.arriving, {}))
        sum = sum.defined() ? sum.add_(gradient) : gradient;
    }
  }

  const int64_t budget_;
  const Mesh& mesh_;
  const bool deterministic_;
  const SumOrder sum_order_;
  const at::ScalarType compute_;
  Layout* layout_ = nullptr;
  std::vector<Moved> moved_;
  std::unique_ptr<Copies> copies_;  // null: all is in the host's memory
  int64_t runs_ = 1;                // micro-batches of this rank in a step
  std::map<Unit, int64_t> left_;    // how often backward has, in this step
  BackwardWatch watch_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Offload, "offload", "1.0.0", "Apache-2.0",
             "optimizer states and master weights in host memory")
