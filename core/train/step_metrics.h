// What a training's steps come to: their lines of metrics.jsonl, and what people hear of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>

#include "core/data/loader.h"
#include "core/measure/memory.h"
#include "core/measure/processor_share.h"
#include "core/train/checkpointer.h"
#include "core/train/step_trace.h"
#include "core/train/training.h"

namespace ditto {

class StepMetrics {
 public:
  // All outlive it.
  StepMetrics(const Training& training, const StepTrace& trace, report::MemoryMeter& memory, RunLog& log,
              Checkpointer& checkpointer);

  void begin_step();
  // Makes the next one, and returns whether some rank asks to stop. What it, or `settle`, throws names the way back,
  // and what complete steps came to is added before.
  bool make_step(TrainingStep& step);
  void settle(TrainingStep& step);
  // After a step, before anything is written of it: run.toml names the kernels once a step has chosen them.
  void record_kernels();
  void end_step();  // of the step that began last: its time, and what else is known by now
  // Adds what the first step came to that ended and was not added yet. Throws as Checkpointer::require_finite does
  // where the step was skipped.
  void take(const StepResult& result);
  // Throws Error(data) where no sample of the steps that were added could be learned from.
  void require_learned() const;

 private:
  struct Ended {
    report::StepRecord record;  // all but its result
    double seconds, waited, processors;
  };
  void guarded(TrainingStep& step, const std::function<void()>& work);
  void add(const StepResult& result);
  void add_result(report::StepRecord& record, const StepResult& result) const;
  void say_of(const StepResult& result);

  const Training& training_;
  const StepTrace& trace_;
  report::MemoryMeter& memory_;
  RunLog& log_;
  Checkpointer& checkpointer_;
  DataWait data_wait_;
  report::ProcessorShare processors_;
  std::chrono::steady_clock::time_point began_;  // the step
  double waited_before_ = 0;                     // for data, until then
  double processors_before_ = 0;                 // seconds of them, until then
  std::deque<Ended> ended_;                      // and not added yet
  int64_t steps_ = 0;                            // that were added
  double readable_ = 0;                          // their samples that could be learned from
  int64_t learned_ = 0;                          // and were, which the rate counts
  double peak_tflops_;                           // 0: unknown
  bool gradient_was_zero_ = false;               // of the step before
  bool has_kernels_ = false;                     // run.toml
};

}  // namespace ditto
