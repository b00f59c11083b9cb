// Where a step's time goes: `ditto bench step --breakdown`.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/assembly/step_observer.h"

namespace ditto {

// Looks on at a process's steps, from one made to its `take`. Times are of the thread that runs the step, which waits
// for the others; looking costs about a microsecond a call. To whoever profiles, each phase is a call of LibTorch's
// (at::RecordScope::USER_SCOPE).
class StepBreakdown : public StepObserver {
 public:
  StepBreakdown();
  ~StepBreakdown() override;

  // "load" (waiting for data), "encode" (with loader.encode_ahead: reading the next step, and
  // waiting for its encoding), "forward" (draws and losses too), "backward", "norm" (gradients' sums among
  // ranks, their norm), "update" (weights, averages and compute copies, which AdamW makes in one pass), "other".
  using Phases = std::map<std::string, double>;  // seconds
  // An op of the table, "linear backward", and the variant that computed it; or LibTorch's, "aten::mul", or an autograd
  // function by its name, where none of the table's is around it.
  struct Call {
    std::string phase, name, variant;  // none: LibTorch's
    friend auto operator<=>(const Call&, const Call&) = default;
  };
  struct Calls {
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Found {
    Phases phases;
    std::map<Call, Calls> calls;      // that no other is around
    std::map<Call, int64_t> kernels;  // the table's, wherever they were called
  };

  void begin();  // of the steps that are looked at
  Found take();  // since then

  void has_read(const Batch&) override { enter("encode"); }
  void begins(int64_t step, Program& program) override;
  void has_gradients(const LossLedger&, const torch::Tensor&) override { enter("other"); }
  void updates(Update&) override { enter("update"); }
  void has_updated() override { enter("load"); }
  void waits_for_encoding() override { enter("encode"); }

 private:
  void enter(const std::string& phase);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditto
