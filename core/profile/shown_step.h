// A step's phases, and the units that are run in them, on the time lines of NVIDIA's profilers.
#pragma once

#include <optional>

#include <ATen/record_function.h>

#include "core/assembly/step_observer.h"
#include "core/measure/shown_range.h"

namespace ditto {

// Phases as StepBreakdown has them; and while it lives all that the process names for whoever profiles
// (at::RecordScope::USER_SCOPE). One at a time; for runs on a GPU alone.
class ShownStep : public StepObserver {
 public:
  ShownStep();
  ~ShownStep() override;
  ShownStep(const ShownStep&) = delete;
  ShownStep& operator=(const ShownStep&) = delete;

  void has_read(const Batch&) override { phase_.emplace("encode"); }
  void begins(int64_t step, Program& program) override;
  void has_gradients(const LossLedger&, const torch::Tensor&) override { phase_.emplace("norm"); }
  void updates(Update&) override { phase_.emplace("update"); }
  void has_updated() override { phase_.emplace("load"); }

 private:
  std::optional<ShownRange> phase_;
  at::CallbackHandle named_;
};

}  // namespace ditto
