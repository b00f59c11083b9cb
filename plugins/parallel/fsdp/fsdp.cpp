// Everything cut over the shard axis (ZeRO-3: S. Rajbhandari et al., 2019, arXiv:1910.02054): a unit's weights are
// gathered before it runs and freed after, in forward and again in backward, and its gradients leave for their owners
// while backward goes on with the units before it. With replicas beside it, this is HSDP.
#include <optional>

#include <ditto/error.h>
#include <ditto/parallel/backward_watch.h>
#include <ditto/parallel/sharded.h>

namespace ditto {
namespace {

struct FsdpOptions {
  bool prefetch = true;
  void read(OptionReader& option) {
    option("prefetch", prefetch, "fsdp: gather the next unit's weights while a unit runs, at the price of their memory")
        .changes(Effect::speed);
  }
};

class Fsdp final : public ParallelStrategy {
 public:
  using Options = FsdpOptions;
  Fsdp(const Options& options, const Needs& needs)
      : options_(options),
        needs_(needs),
        watch_([this](const Unit& unit) { reach(unit); }, [this](const Unit& unit) { leave(unit); }) {}

  std::optional<Axis> axis() const override { return Axis::shard; }
  bool exact() const override { return true; }
  bool in_step() const override { return true; }

  void shard(Layout& layout) override { units_.emplace(layout, needs_, ShardedUnit::Keep::shard); }
  void parameters_changed() override { units_->parameters_changed(); }
  Tensors held() const override { return units_->held(); }
  AxisSet sums(const LayoutEntry& entry, const StepPlan& plan) const override { return units_->sums(entry, plan); }

  UnitRun wrap_unit(UnitRun run) override {
    return watch_.wrap([this, run = std::move(run)](const Unit& unit, UnitCall& call) {
      auto* sharded = units_->find(unit);
      prepare(sharded, units_->after(unit));
      run(unit, call);
      if (!sharded) return;
      const bool escapes = hands_out(*sharded, call);
      sharded->release();
      if (escapes) refuse(unit);
    });
  }

  void begin_step(const StepPlan& plan) override {
    watch_.reset();
    if (plan.phase != Phase::train) return;
    units_->begin_step(plan);
    const Traffic::Scope pass(needs_.mesh->traffic(), Traffic::Pass::forward);
    begin_gathers(units_->first());
  }
  // For units that backward did not come to.
  void end_accumulation(int64_t accumulation, const StepPlan&) override { units_->complete_accumulation(accumulation); }
  void sync_gradients() override { units_->finish(); }

 private:
  // A unit's weights are there, and its neighbours' on their way.
  void prepare(ShardedUnit* unit, const std::vector<ShardedUnit*>& next) {
    if (unit) unit->begin_gather();
    begin_gathers(next);
    if (unit) unit->gather();
  }
  void begin_gathers(const std::vector<ShardedUnit*>& units) {
    if (options_.prefetch) ShardedUnit::begin_gathers(units);
  }
  void reach(const Unit& unit) { prepare(units_->find(unit), units_->before(unit)); }
  void leave(const Unit& unit) {
    auto* sharded = units_->find(unit);
    if (!sharded) return;
    sharded->release();
    units_->send_gradients(*sharded);
  }

  // A weight that a unit hands out, unchanged or as a view, is freed under its reader.
  static bool hands_out(const ShardedUnit& sharded, UnitCall& call) {
    bool escapes = false;
    for (const auto& [name, output] : call.outputs) escapes = escapes || sharded.is_part(output);
    for (const auto& field : call.stream.fields()) escapes = escapes || sharded.is_part(*field.tensor);
    return escapes;
  }
  [[noreturn]] static void refuse(const Unit& unit) {
    throw Error(ErrorKind::config, to_text(unit),
                "hands out a parameter itself, which fsdp frees when the unit has run",
                "let the model hand out a clone(), or use shard_plugin = \"zero2\"");
  }

  const Options options_;
  const Needs needs_;
  std::optional<ShardedUnits> units_;
  BackwardWatch watch_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Fsdp, "fsdp", "1.0.0", "Apache-2.0",
             "weights, gradients and optimizer states cut over the shard axis")
