// Where a step's time goes: `ditto bench step --breakdown`.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/train/step.h"

namespace ditto {

// Looks on at a process's steps, from one made to its `take`. Times are of the thread that runs the step, which waits
// for the others; looking costs about a microsecond a call.
class StepBreakdown : public StepObserver {
 public:
  StepBreakdown();
  ~StepBreakdown() override;

  // "load" (waiting for data), "encode", "forward" (draws and losses too), "backward", "norm" (gradients' sums among
  // ranks, their norm), "update" (weights, averages and compute copies, which AdamW makes in one pass), "other".
  using Phases = std::map<std::string, double>;  // seconds
  struct Calls {
    int64_t calls = 0;
    double seconds = 0;
  };
  // By phase and what was called there: an op of the table, "linear backward", or LibTorch's, "aten::mul", where none
  // of the table's is around it; autograd's functions by their names.
  using Ops = std::map<std::pair<std::string, std::string>, Calls>;

  void begin();                   // of the steps that are timed
  std::pair<Phases, Ops> take();  // since then

  void has_read(const Batch&) override { enter("encode"); }
  void begins(int64_t step, Program& program) override;
  void has_gradients(const LossLedger&, const StepResult&) override { enter("other"); }
  void updates(Update&) override { enter("update"); }
  void has_updated() override { enter("load"); }

 private:
  void enter(const std::string& phase);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditto
