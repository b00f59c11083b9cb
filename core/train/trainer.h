// A training run from its recipe to its end: the loop over its steps. What it moves is in Training; RunLog writes down
// what comes of it, Resume takes it up where it was left, and Checkpointer keeps it.
#pragma once

#include <memory>

#include "core/measure/memory.h"
#include "core/train/checkpointer.h"
#include "core/train/resume_run.h"
#include "core/train/run_log.h"
#include "core/train/run_summary.h"
#include "core/train/step_metrics.h"
#include "core/train/step_trace.h"
#include "core/train/train_options.h"
#include "core/train/training.h"
#include "core/verify/step_receipts.h"

namespace ditto {

class Trainer {
 public:
  // `mesh` and `registry` outlive it.
  Trainer(Recipe recipe, Registry& registry, const Mesh& mesh, Group checkpoint_ranks, TrainOptions options);
  Trainer(const Trainer&) = delete;  // its parts refer to one another
  Trainer& operator=(const Trainer&) = delete;
  // 0; or kStoppedBySignal: after a step, with its checkpoint, or before the first. Whoever calls it has said that stop
  // signals are answered.
  int run();

 private:
  int run_to_end();
  void start();
  RunEnd loop();
  bool make_step();  // whether some rank asks to stop
  bool needs_results() const;
  bool take_receipt(const StepResult& result);
  void show_trace();
  void save();
  void begin(const char* what);  // "validation": what may take its time
  bool is_any_rank_stopped();
  int64_t last_step() const { return options_.replay ? options_.replay->last_step : recipe_.run.steps; }
  bool due(int64_t every) const { return every > 0 && training_.done % every == 0; }

  Recipe recipe_;
  const Mesh& mesh_;
  Group checkpoint_ranks_;
  TrainOptions options_;
  // They end from the last one on, and that order matters: threads of the saver and of loaders end before the log that
  // they warn in, and the saver before its ranks; the log's folder is locked until all that writes into it is gone.
  report::MemoryMeter memory_;
  RunLog log_;
  Training training_;
  std::unique_ptr<StepReceipts> receipts_;  // null: the run makes none
  StepTrace trace_;
  Resume resume_;
  Checkpointer checkpointer_;
  StepMetrics metrics_;
};

}  // namespace ditto
