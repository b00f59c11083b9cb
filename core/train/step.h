// One training step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/optimizer.h>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/assembly/program.h"
#include "core/assembly/step_observer.h"
#include "core/assembly/step_shares.h"
#include "core/data/loader.h"
#include "core/measure/memory.h"
#include "core/mesh/gradient_sum.h"
#include "core/network/flops.h"
#include "core/train/lr_schedule.h"
#include "core/train/step_batches.h"
#include "core/verify/audit.h"

namespace ditto {

class TrainingStep {
 public:
  // `updates` is counted by the caller's optimizer; all of these outlive this.
  TrainingStep(Assembly& assembly, Loader& loader, Optimizer& optimizer, Ema& ema);

  // The step after `step` complete ones. `wants_to_stop`: whether this rank does, asked late in the step. Throws
  // Error(numeric) where the recipe says so.
  StepResult run(
      int64_t step, const std::function<bool()>& wants_to_stop = [] { return false; });
  // From which step on batches will be asked for, so that they are read ahead.
  void expect(int64_t step);

  int64_t samples = 0;  // of the run's order, used up: the place where the next step's begin
  int64_t updates = 0;  // optimizer steps made: less than steps by the skipped ones
  int64_t skipped_in_a_row = 0;
  double loss_scale = 1;  // fp16: what losses are multiplied with before backward
  int64_t steps_since_overflow = 0;
  std::optional<double> flops;  // of this rank's last step, forward and backward; none: the model cannot be counted
  std::string no_flops;         // why
  // What the last step's first backward found of this rank's forwards, by this meter; none: nobody measures.
  const report::MemoryMeter* meter = nullptr;
  std::optional<int64_t> activations;
  std::optional<int64_t> bytes_ahead() const;  // of the next step's encodings; none: they are not made ahead
  std::vector<StepObserver*> observers;        // outlive this
  // run.audit: hears of what audits found, on every rank alike; may be empty.
  std::function<void(const std::string&)> say;
  const Audit* audit() const { return audit_.get(); }  // null: there is none

 private:
  using Loaded = StepBatches::Loaded;
  StepResult make(int64_t step, const std::function<bool()>& wants_to_stop);
  void begin_next(int64_t number);
  LossLedger compute_audited(const StepShares::Step& step);
  LossLedger compute_nothing(const StepPlan& plan);  // of a step without a micro-batch
  // Forward and backward of all micro-batches, and the sum of their gradients; may be done again.
  LossLedger compute(const StepShares::Step& step, const Loaded& loaded);
  // The micro-batch of another data rank, whose gradients are left out of all sums (core/verify).
  void repeat(const StepShares::Step& step, const Loaded& loaded, int64_t accumulation, int owner);
  void begin_gradients(const StepPlan& plan);
  void clear_gradients();
  void count_flops(const std::vector<Batch>& batches);
  void watch_activations(Program& program);
  void begin(const StepPlan& plan);
  void run_micro_batches(const std::vector<Batch>& batches, Program& program, const StepPlan& plan);
  void run_watched(const std::vector<Batch>& batches, Program& program, const StepPlan& plan);
  void end_accumulation(int64_t accumulation, const StepPlan& plan);
  double unscale(double norm);
  void update(const StepResult& result);
  bool skip(int64_t step, const StepResult& result);
  bool overflowed(const StepResult& result);

  Assembly& assembly_;
  Loader& loader_;
  Optimizer& optimizer_;
  Ema& ema_;
  LrSchedule lr_schedule_;
  FlopCounter counter_;
  StepShares shares_;
  StepBatches batches_;
  bool watched_ = false;  // the calls of a step have been looked at (run.numerics = "one")
  std::vector<std::unique_ptr<GradientSum>> gradients_;  // along networks->training()
  std::unique_ptr<Audit> audit_;
};

}  // namespace ditto
