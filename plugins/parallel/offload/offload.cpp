// Optimizer states and master weights in the host's memory, updated there (J. Ren et al., 2021, arXiv:2101.06840), or
// in both memories by a budget of bytes, each part updated where it lies (as Gemini's hybrid Adam does,
// arXiv:2108.05818). The optimizer, the average and the checkpoint see leaves in host memory; forward and backward see
// the device's.
//
// On a CPU the host's leaves are separate memory all the same, and the update's bits are those of a run without.
#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/strategy.h>

namespace ditto {
namespace {

using torch::Tensor;

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
        compute_(needs.compute) {}

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

  // Core is about to take up the accumulation's gradients of copies, and those of a tree; the others wait
  // for the last accumulation.
  void end_accumulation(int64_t, const StepPlan&) override {
    for (const auto& moved : moved_)
      if (is_summed_by_accumulations(entry_of(moved))) bring_gradient(moved);
  }

  void sync_gradients() override {
    for (const auto& moved : moved_) bring_gradient(moved);
  }

  // Strategies that cut parameters read the layout's tensors themselves.
  void parameters_changed() override {
    for (const auto& moved : moved_)
      if (moved.values.defined()) moved.values.detach().copy_(entry_of(moved).tensor.detach());
  }

 private:
  static constexpr int64_t kTensorsPerWeight = 3;

  struct Moved {
    size_t index;   // of the layout's entry, whose tensor is in host memory now
    Tensor values;  // what layers multiply with: the model's leaf, or the compute copy; undefined: another strategy's
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

  // Through pinned memory, which is several times as fast as any other.
  static Tensor on_host(const Tensor& tensor) {
    if (!tensor.is_cuda()) return tensor;
    const auto pinned = torch::TensorOptions(tensor.scalar_type()).pinned_memory(true);
    return torch::empty(tensor.sizes(), pinned).copy_(tensor);
  }

  // From the model's leaf, or from where a strategy that cuts parameters has left it.
  void bring_gradient(const Moved& moved) const {
    torch::NoGradGuard no_grad;
    auto& entry = entry_of(moved);
    auto& sum = entry.tensor.mutable_grad();
    if (sum.defined()) sum = on_host(sum);
    auto& from = entry.parameter.leaf().mutable_grad();
    if (!moved.values.defined() || !from.defined()) return;
    const Tensor gradient = on_host(from);
    from.reset();
    sum = sum.defined() ? sum.add_(gradient) : gradient;
  }

  const int64_t budget_;
  const Mesh& mesh_;
  const bool deterministic_;
  const SumOrder sum_order_;
  const at::ScalarType compute_;
  Layout* layout_ = nullptr;
  std::vector<Moved> moved_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Offload, "offload", "1.0.0", "Apache-2.0",
             "optimizer states and master weights in host memory")
