#include "core/train/trainer.h"

#include <sstream>

#include <torch/types.h>

#include "core/measure/freed_memory.h"
#include "core/ranks/stop.h"
#include "core/train/evaluation.h"

namespace ditto {

Trainer::Trainer(Recipe recipe, Registry& registry, const Mesh& mesh, Group checkpoint_ranks, TrainOptions options)
    : recipe_(std::move(recipe)),
      mesh_(mesh),
      checkpoint_ranks_(std::move(checkpoint_ranks)),
      options_(std::move(options)),
      memory_(torch::Device(recipe_.run.device)),
      log_(recipe_, mesh_),
      training_(recipe_, registry, mesh_, options_, log_),
      trace_(training_, options_.trace),
      resume_(training_, options_, log_),
      checkpointer_(training_, log_, checkpoint_ranks_),
      metrics_(training_, trace_, memory_, log_, checkpointer_) {}

int Trainer::run() {
  return log_.noting_error([this] { return run_to_end(); });
}

int Trainer::run_to_end() {
  report::give_back_freed_memory();
  const report::MemoryMeter::Watch watch(memory_);
  start();
  if (training_.done < last_step() && is_any_rank_stopped()) {
    log_.say("stopped by a signal while starting; the same command starts again");
    return kStoppedBySignal;
  }
  const bool is_complete_before = training_.done >= recipe_.run.steps && resume_.start();
  auto end = loop();
  if (is_complete_before) end = RunEnd::complete_before;
  begin("the end of its last save");
  checkpointer_.wait();
  log_.flush();
  if (!options_.replay && end == RunEnd::complete) metrics_.require_learned();
  if (!options_.replay) say_end(training_, end, log_);
  return end == RunEnd::stopped ? kStoppedBySignal : 0;
}

void Trainer::start() {
  if (log_.writes()) trace_.require_writable();
  log_.open();
  resume_.find();
  training_.assemble(resume_.start());
  trace_.observe(memory_);
  if (recipe_.record.receipts)
    receipts_ = std::make_unique<StepReceipts>(*training_.assembly, *training_.ema, *training_.loader);
  if (receipts_) training_.step->observers.push_back(receipts_.get());
  say_beginning(training_, log_);
  checkpointer_.open();
  if (!options_.replay) checkpointer_.say_disk();
  resume_.go_on();
  std::optional<Receipt> beginning;
  if (receipts_) beginning = receipts_->beginning(training_.done, training_.registry);
  if (beginning && options_.replay) options_.replay->begins(*beginning);
  resume_.begins(beginning);
}

RunEnd Trainer::loop() {
  log_.begin_progress(training_.done);
  training_.step->expect(training_.done);
  bool is_stopped = false;
  while (training_.done < last_step() && !is_stopped) {
    metrics_.begin_step();
    if (options_.watch) options_.watch->begin_step();
    mesh_.traffic().clear();
    training_.assembly->networks->encoder_mesh().traffic().clear();
    const bool stop = make_step();
    ++training_.done;
    metrics_.record_kernels();
    const bool is_last = training_.done == recipe_.run.steps;
    is_stopped = stop && !is_last;
    if (is_last || is_stopped || needs_results()) metrics_.settle(*training_.step);
    const auto results = training_.step->results();
    if (receipts_ && !take_receipt(results.back())) break;
    metrics_.end_step();
    for (const auto& result : results) metrics_.take(result);
    if (is_last || is_stopped) show_trace();
    if (due(recipe_.validate.every)) {
      begin("validation");
      log_validation(training_, log_);
    }
    if (!options_.replay && (due(recipe_.checkpoint.every) || is_last || is_stopped)) save();
    if (due(recipe_.validate.grid_every) || (is_last && recipe_.validate.grid_every > 0)) {
      begin("a grid of samples");
      log_samples(training_, log_);
    }
  }
  resume_.take_place(checkpoint_ranks_);
  // A run of no steps: its initial weights. All others have saved their last step.
  if (training_.done == 0 && !resume_.start() && !options_.replay) save();
  log_.end_progress();
  return is_stopped ? RunEnd::stopped : RunEnd::complete;
}

// Whether a result decides what is done from here on: a receipt, what is seen of the weights, or what is kept.
bool Trainer::needs_results() const {
  return receipts_ || due(recipe_.validate.every) || due(recipe_.validate.grid_every) ||
         (!options_.replay && due(recipe_.checkpoint.every));
}

bool Trainer::make_step() {
  trace_.begin_step(last_step());
  const bool stop = metrics_.make_step(*training_.step);
  trace_.end_step();
  if (!resume_.has_begun()) metrics_.settle(*training_.step);
  resume_.take_place(checkpoint_ranks_);
  return stop;
}

// Whether to go on.
bool Trainer::take_receipt(const StepResult& result) {
  const auto receipt = receipts_->after(result.step, result);
  if (auto* file = log_.receipts()) file->append(receipt);
  return !options_.replay || options_.replay->made(receipt);
}

void Trainer::show_trace() {
  if (!trace_.is_told()) return;
  begin("telling what was traced");
  std::istringstream tables(trace_.tell());
  for (std::string line; std::getline(tables, line);) log_.say(line);
}

void Trainer::save() {
  begin("saving a checkpoint");
  checkpointer_.save();
}

void Trainer::begin(const char* what) {
  if (options_.watch) options_.watch->begin(what);
}

bool Trainer::is_any_rank_stopped() {
  auto stopped = torch::tensor({stop_signal() != 0 ? 1 : 0}, torch::kInt);
  return mesh_.world().all_reduce(stopped).item<int>() > 0;
}

}  // namespace ditto
