// One training step, and when the host hears what it came to (run.read_results).
//
// Losses, the gradient's norm and the update are computed on the run's device; what people and files are told, and what
// is counted, the host decides, in `settle`, from numbers that it reads. Read at once, they are there before the update
// is asked for, and a step that is to be skipped asks for none: the host waits for the device in every step.
//
// Read late, the update is asked for right away, and the device decides what the host will find: whether it is skipped
// (Update::skip), by what gradients are clipped (Update::late_clip), and with which loss scale the next step computes
// (`scale_`). The step before is read when the gradients of this one have been asked for, and its update has not: the
// device has a whole forward and backward to do meanwhile, and all that the host counts (updates, the optimizer's
// counters, the average's decay, steps without an overflow) is right again before it is used. Of a skipped update the
// counters are put back then; its tensors never changed. So both ways make the same numbers, and whoever saves,
// validates or stops calls `settle` first.
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
#include "core/process/reading.h"
#include "core/train/lr_schedule.h"
#include "core/train/step_batches.h"
#include "core/verify/audit.h"

namespace ditto {

class TrainingStep {
 public:
  // `updates` is counted by the caller's optimizer; all of these outlive this.
  TrainingStep(Assembly& assembly, Loader& loader, Optimizer& optimizer, Ema& ema);

  // The step after `step` complete ones, read at once. Throws Error(numeric) where the recipe says so.
  StepResult run(int64_t step);
  // The same, read as the recipe says: of this step, or of the one before, `results` has what it came to. Returns
  // whether some rank asks to stop after it; `wants_to_stop`: whether this one does, asked late in the step. What it
  // throws may be of the step before.
  bool make(
      int64_t step, const std::function<bool()>& wants_to_stop = [] { return false; });
  void settle();                      // reads what is not read yet; throws as run does
  std::vector<StepResult> results();  // of steps that were read since the last call, in their order
  bool reads_late() const { return reads_ == Reads::late; }
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
  enum class Reads { at_once, late };
  // A step that the device works on.
  struct Asked {
    StepResult result;  // what the host knows of it
    LossLedger ledger;
    Reading numbers;  // [1 + what the ledger gathers], the norm first
    // Before its update, where that was asked for before this is read.
    std::optional<Optimizer::Counters> counters = {};
  };
  Reads reads_of(const RunOptions& run) const;
  bool ask(int64_t step, const std::function<bool()>& wants_to_stop, Reads reads);
  void begin_scale(Reads reads);
  bool is_wanted_by_any(bool wanted) const;
  void decide(const torch::Tensor& gathered, const torch::Tensor& losses, const torch::Tensor& norm, Update& update);
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
  torch::Tensor unscale(const torch::Tensor& norm);
  void update(Update& asked);
  bool skip(const StepResult& result);
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
  Reads reads_ = Reads::at_once;
  std::optional<Asked> asked_;  // that nobody has read yet
  std::vector<StepResult> results_;
  torch::Tensor scale_;  // loss_scale on the device, [] fp64, of the next step there; undefined: losses are not scaled
};

}  // namespace ditto
