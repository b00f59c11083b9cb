// Optimizer states, masters and average cut over the shard axis (ZeRO-1, the "distributed optimizer": S. Rajbhandari et
// al., 2019, arXiv:1910.02054). Every rank has all weights in the compute dtype, and all gradients until its backward
// has ended.
#include <optional>

#include <ditto/parallel/sharded.h>

namespace ditto {
namespace {

class Zero1 final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  Zero1(const Options&, const Needs& needs) : needs_(needs) {}

  std::optional<Axis> axis() const override { return Axis::shard; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override { units_.emplace(layout, needs_, ShardedUnit::Keep::whole); }
  void parameters_changed() override { units_->parameters_changed(); }
  Tensors held() const override { return units_->held(); }
  AxisSet sums(const LayoutEntry& entry, const StepPlan& plan) const override { return units_->sums(entry, plan); }

  void begin_step(const StepPlan& plan) override {
    if (plan.phase == Phase::train) units_->begin_step(plan);
  }
  void end_accumulation(int64_t accumulation, const StepPlan&) override { units_->complete_accumulation(accumulation); }
  void sync_gradients() override { units_->finish(); }

 private:
  const Needs needs_;
  std::optional<ShardedUnits> units_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Zero1, "zero1", "1.0.0", "Apache-2.0",
             "optimizer states and masters cut over the shard axis")
