// Serves no axis and changes no number: counts the units that a rank runs, in a line a step.
#include <fstream>

#include <ditto/parallel/strategy.h>

namespace {

using namespace ditto;

struct CountingOptions {
  std::string counts;
  void read(OptionReader& option) {
    option("counts", counts, "rank R appends a step's count to the file of this name and .R; empty: none does")
        .changes(Effect::nothing)
        .place();
  }
};

class Counting final : public ParallelStrategy {
 public:
  using Options = CountingOptions;
  Counting(const Options& o, const Needs& needs) : options_(o), rank_(needs.mesh->rank()) {}

  std::optional<Axis> axis() const override { return std::nullopt; }
  bool exact() const override { return true; }

  UnitRun wrap_unit(UnitRun run) override {
    return [this, run = std::move(run)](const Unit& unit, UnitCall& call) {
      ++units_;
      run(unit, call);
    };
  }
  void begin_step(const StepPlan&) override { units_ = 0; }
  void sync_gradients() override {
    if (!options_.counts.empty())
      std::ofstream(options_.counts + "." + std::to_string(rank_), std::ios::app) << units_ << "\n";
  }

 private:
  Options options_;
  int rank_;
  int64_t units_ = 0;
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, Counting, "counting", "1.0.0", "Apache-2.0", "counts the units that run")
