// Optimizer states, masters, average and gradients cut over the shard axis (ZeRO-2: S. Rajbhandari et al., 2019,
// arXiv:1910.02054). Every rank has all weights in the compute dtype; a unit's gradients leave for their owners while
// backward goes on with the units before it.
#include <optional>

#include <ditto/parallel/backward_watch.h>
#include <ditto/parallel/sharded.h>

namespace ditto {
namespace {

class Zero2 final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  Zero2(const Options&, const Needs& needs)
      : needs_(needs), watch_([](const Unit&) {}, [this](const Unit& unit) { leave(unit); }) {}

  std::optional<Axis> axis() const override { return Axis::shard; }
  bool exact() const override { return true; }
  bool in_step() const override { return true; }

  void shard(Layout& layout) override { units_.emplace(layout, needs_, ShardedUnit::Keep::whole); }
  void parameters_changed() override { units_->parameters_changed(); }
  Tensors held() const override { return units_->held(); }
  AxisSet sums(const LayoutEntry& entry, const StepPlan& plan) const override { return units_->sums(entry, plan); }
  UnitRun wrap_unit(UnitRun run) override { return watch_.wrap(std::move(run)); }

  void begin_step(const StepPlan& plan) override {
    watch_.reset();
    if (plan.phase == Phase::train) units_->begin_step(plan);
  }
  // For units that backward did not come to.
  void end_accumulation(int64_t accumulation, const StepPlan&) override { units_->complete_accumulation(accumulation); }
  void sync_gradients() override { units_->finish(); }

 private:
  void leave(const Unit& unit) {
    if (auto* sharded = units_->find(unit)) units_->send_gradients(*sharded);
  }

  const Needs needs_;
  std::optional<ShardedUnits> units_;
  BackwardWatch watch_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Zero2, "zero2", "1.0.0", "Apache-2.0",
             "optimizer states, masters and gradients cut over the shard axis")
