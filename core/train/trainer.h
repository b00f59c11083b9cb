// A training run from its recipe to its end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/console/progress.h"
#include "core/data/sizes.h"
#include "core/measure/memory.h"
#include "core/measure/processors.h"
#include "core/process/same_start.h"
#include "core/profile/chrome_trace.h"
#include "core/profile/trace.h"
#include "core/ranks/watch.h"
#include "core/receipts/receipt_file.h"
#include "core/run_folder/metrics.h"
#include "core/run_folder/run_folder.h"
#include "core/run_folder/tensorboard.h"
#include "core/train/step.h"
#include "core/verify/step_receipts.h"

namespace ditto {

// Steps that were made before are made again. Of them nothing is saved, and who asked hears of each, on every rank.
struct Replay {
  int64_t last_step = 0;
  std::function<void(const Receipt& beginning)> begins;  // may throw
  std::function<bool(const Receipt&)> made;              // whether to go on
};

struct TrainOptions {
  std::string resume = "auto";            // auto, never, or a checkpoint or run
  std::vector<std::string> allow_change;  // keys of the recipe that may differ on a resume
  RankWatch* watch = nullptr;             // is told what is being done; outlives the trainer
  // Throws Error(kind) unless all ranks have the same; empty: nobody asks.
  std::function<void(const std::string& topic, const Facts&, ErrorKind kind)> expect_same;
  TraceOptions trace;            // of every step what is counted, of the last one the Chrome trace
  std::optional<Replay> replay;  // of a recipe with [record] receipts
};

class Trainer {
 public:
  // `mesh` and `registry` outlive it.
  Trainer(Recipe recipe, Registry& registry, const Mesh& mesh, Group checkpoint_ranks, TrainOptions options);
  ~Trainer();
  // 0; or kStoppedBySignal: after a step, with its checkpoint, or before the first. Whoever calls it has said that stop
  // signals are answered.
  int run();

 private:
  void open_outputs();
  void assemble();
  void resume();
  void say_other_run();
  void take_up(const std::string& path);
  void begin_receipts();
  bool take_receipt(const StepResult& result);
  void record_run();
  void describe();
  void say_end(bool finished_before);
  void loop();
  StepResult train_step();
  void after_step(const StepResult& result, double seconds, double waited);
  std::map<std::string, int64_t> memory_shares();
  void show_trace();
  void show_validation();
  void show_grid();
  void write_grid(const std::vector<formats::Picture>& sheets);
  void save();
  void require_finite_state();
  std::string way_back();
  void require_learned() const;  // throws Error(data) where no sample of this process's steps could be learned from
  std::string checkpoints() const;
  checkpoint::TrainState state();
  void say(const std::string& text);
  void begin(const char* what);  // "validation": what may take its time
  bool is_any_rank_stopped();
  void expect_same(const std::string& topic, const Facts& facts, ErrorKind kind);
  bool writes() const { return mesh_.rank() == 0; }
  int64_t last_step() const { return options_.replay ? options_.replay->last_step : recipe_.run.steps; }
  bool due(int64_t every) const { return every > 0 && step_ % every == 0; }

  Recipe recipe_;
  Registry& registry_;
  const Mesh& mesh_;
  Group checkpoint_ranks_;
  TrainOptions options_;
  report::MemoryMeter memory_;
  std::unique_ptr<report::RunFolder> folder_;  // these five: rank 0 only
  std::unique_ptr<report::MetricsLog> metrics_;
  std::unique_ptr<report::TensorBoardLog> board_;
  std::unique_ptr<ReceiptFile> receipt_file_;
  std::unique_ptr<report::Progress> progress_;
  DataWait data_wait_{recipe_.loader.threads, report::usable_processors()};
  std::unique_ptr<Assembly> assembly_;
  std::unique_ptr<Loader> loader_, validation_loader_;
  std::shared_ptr<Optimizer> optimizer_;
  std::unique_ptr<Ema> ema_;
  std::unique_ptr<TrainingStep> training_;
  std::unique_ptr<StepReceipts> receipts_;  // null: the run makes none
  std::optional<StepBreakdown> breakdown_;  // these: where they are traced
  std::optional<ChromeTrace> chrome_trace_;
  std::vector<report::KernelCount> kernels_;  // of the last step
  std::unique_ptr<checkpoint::Saver> saver_;
  std::optional<std::string> start_;                 // the checkpoint that it goes on from
  std::string data_, held_out_;                      // their fingerprints
  SizesFound sizes_;                                 // of the data
  std::map<std::string, std::string> started_from_;  // what checkpoints note of it
  int64_t step_ = 0;                                 // complete steps
  int64_t loop_began_at_ = 0;
  int64_t saved_step_ = -1;
  int64_t learned_ = 0;  // samples that were learned from, which the rate counts
  double readable_ = 0;  // samples that could be learned from
  bool stopped_ = false;
  bool gradient_was_zero_ = false;  // of the step before
  bool kernels_recorded_ = false;   // in run.toml: known once a step has chosen them
  double peak_tflops_ = 0;
};

}  // namespace ditto
