#include "core/train/trainer.h"

#include <chrono>
#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "core/assembly/first_weights.h"
#include "core/assembly/resume.h"
#include "core/assembly/run_notes.h"
#include "core/checkpoint/disk.h"
#include "core/components/bf16_ways.h"
#include "core/config/late_options.h"
#include "core/config/numerics.h"
#include "core/console/streams.h"
#include "core/data/batch_plan.h"
#include "core/measure/freed_memory.h"
#include "core/measure/roofline.h"
#include "core/network/finite.h"
#include "core/ranks/stop.h"
#include "core/sample/generate.h"
#include "core/train/validation.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

Trainer::Trainer(Recipe recipe, Registry& registry, const Mesh& mesh, Group checkpoint_ranks, TrainOptions options)
    : recipe_(std::move(recipe)),
      registry_(registry),
      mesh_(mesh),
      checkpoint_ranks_(std::move(checkpoint_ranks)),
      options_(std::move(options)),
      memory_(torch::Device(recipe_.run.device)) {}

Trainer::~Trainer() = default;

int Trainer::run() {
  report::give_back_freed_memory();
  const report::MemoryMeter::Watch watch(memory_);
  open_outputs();
  assemble();
  describe();
  saver_ = std::make_unique<checkpoint::Saver>(
      checkpoints(), checkpoint::Retention{recipe_.checkpoint.keep, recipe_.checkpoint.keep_every}, mesh_,
      checkpoint_ranks_, [this](const std::string& line) { say("warning: " + line); });
  resume();
  begin_receipts();
  record_run();
  if (step_ < last_step() && is_any_rank_stopped()) {
    say("stopped by a signal while starting; the same command starts again");
    return kStoppedBySignal;
  }
  const bool finished_before = step_ >= recipe_.run.steps && saved_step_ >= 0;
  loop();
  begin("the end of its last save");
  saver_->wait();
  if (board_) board_->flush();
  if (metrics_) metrics_->sync();
  if (!options_.replay && !finished_before && !stopped_) require_learned();
  if (!options_.replay) say_end(finished_before);
  return stopped_ ? kStoppedBySignal : 0;
}

void Trainer::open_outputs() {
  if (!writes()) return;
  if (!options_.trace.file.empty()) ChromeTrace::require_writable(options_.trace.file);
  folder_ = std::make_unique<report::RunFolder>(output_folder(recipe_));
  metrics_ = std::make_unique<report::MetricsLog>(folder_->path());
  if (recipe_.record.receipts) receipt_file_ = std::make_unique<ReceiptFile>(folder_->path());
}

void Trainer::assemble() {
  const auto log = [this](const std::string& line) {
    if (folder_) folder_->log(line);
  };
  start_ = find_start(options_.resume, checkpoints(), mesh_.world(), [this](const std::string& line) { say(line); });
  if (start_) keep_ways(recipe_, registry_, checkpoint::describe(*start_).recipe_toml);
  AssemblyParts parts;
  parts.data = parts.objective = true;
  parts.sampler = recipe_.validate.grid_every > 0;
  parts.opened = [this](const Source& train, const Source* validation) {
    auto facts = facts_of(train, "data");
    if (validation) facts.merge(facts_of(*validation, "validation data"));
    expect_same("data", facts, ErrorKind::data);
  };
  assembly_ = std::make_unique<Assembly>(recipe_, registry_, mesh_, parts, log);
  if (recipe_.run.audit > 0 && !is_one_number(recipe_))
    expect_same("machine: run.audit compares bits, which fast kernels make alike on equal machines alone",
                machine_record(assembly_->main->ctx->device), ErrorKind::config);
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  // Of a damaged shard all ranks hear alike, of a sample that does not decode only the rank that reads it.
  const auto warn = [this](const std::string& line) {
    if (!writes() && training_) report::tell(fmt::format("rank {}: {}", mesh_.rank(), line));
    say(line);
  };
  data_ = assembly_->train_data->fingerprint();
  loader_ = std::make_unique<Loader>(assembly_->train_data, recipe_.loader, seed, warn);
  if (assembly_->validation_data) {
    held_out_ = assembly_->validation_data->fingerprint();
    validation_loader_ =
        std::make_unique<Loader>(assembly_->validation_data, validation_options(recipe_.loader), seed, warn);
  }
  optimizer_ = assembly_->make_optimizer();
  // A checkpoint holds all that a run goes on with, but for the model that an adapter is learned on.
  if (!start_ || assembly_->main->adapter)
    started_from_ = read_first_weights(
        *assembly_,
        {mesh_, [this](const auto& topic, const auto& facts) { expect_same(topic, facts, ErrorKind::checkpoint); },
         [this](const std::string& line) { say(line); }, options_.allow_change});
  ema_ = std::make_unique<Ema>(assembly_->networks->learned(), recipe_.ema);
  training_ = std::make_unique<TrainingStep>(*assembly_, *loader_, *optimizer_, *ema_);
  if (options_.trace.comm) training_->meter = &memory_;
  if (options_.trace.kernels || !options_.trace.file.empty()) training_->observers.push_back(&breakdown_.emplace());
  training_->say = [this](const std::string& line) { say(line); };
  if (validation_loader_) check_validation(*assembly_, *validation_loader_);
  sizes_ = find_sizes(*assembly_->train_data, taken_sizes(recipe_.batch));
  assembly_->check(sizes_.learned);
  if (recipe_.record.receipts) receipts_ = std::make_unique<StepReceipts>(*assembly_, *ema_, *loader_);
  if (receipts_) training_->observers.push_back(receipts_.get());
}

void Trainer::describe() {
  const auto& run = recipe_.run;
  const auto frozen = assembly_->main->frozen();
  say(fmt::format("{}: {} with {} learned numbers{}, {} on {}, {} thread{} a rank, {} rank{}", run.name,
                  recipe_.model.plugin, assembly_->networks->parameters(),
                  frozen > 0 ? fmt::format(" beside {} frozen ones", frozen) : "", run.precision, run.device,
                  torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s", mesh_.world_size(),
                  mesh_.world_size() == 1 ? "" : "s"));
  say(fmt::format("data: {} samples to learn from, batch {}, {} steps{}{}", assembly_->train_data->size(), run.batch,
                  run.steps, sizes_.report,
                  micro_batch_report(run, mesh_, each_alone(recipe_, *assembly_->train_data), recipe_.batch.plan)));
  for (const auto& line : notes_on_options(recipe_)) say(line);
  const auto& ema = recipe_.ema;
  if (optimizer_->averages() && (ema.decay != EmaOptions().decay || ema.warmup != EmaOptions().warmup))
    say("warning: ema.decay and ema.warmup take no effect: the optimizer makes the average itself");
  for (const auto& line : assembly_->notes()) say("note: " + line);
  if (const auto audit = audit_report(run, mesh_); !audit.empty()) say(audit);
  if (assembly_->guidance) {
    const auto& guidance = *assembly_->guidance;
    const auto null = unlearned_null(recipe_, guidance);
    if (guidance.uses_negative() && assembly_->networks->conditions().empty())
      say("warning: guidance will have no effect: the model takes no condition");
    else if (!null.empty())
      say("warning: " + null);
  }
  say("into " + shown(output_folder(recipe_)));
}

void Trainer::record_run() {
  if (!writes()) return;
  folder_->write_recipe(run_toml(*assembly_, registry_));
  if (!recipe_.log.tensorboard) return;
  board_ = std::make_unique<report::TensorBoardLog>(folder_->path(), step_ + 1, recipe_.log.tensorboard_flush);
  board_->recipe(step_, formats::render_toml(recipe_.resolved()));
}

void Trainer::loop() {
  if (writes()) {
    report::ProgressOptions options;
    options.style = report::progress_style(recipe_.log.progress);
    options.every_s = recipe_.log.plain_every;
    options.record = [this](std::string_view line) { folder_->log(line); };
    report::ProgressState start;
    start.done = step_;
    start.items = learned_;
    progress_ = std::make_unique<report::Progress>(recipe_.run.steps, options, start);
  }
  peak_tflops_ = recipe_.log.peak_tflops;
  training_->expect(step_);
  loop_began_at_ = step_;
  while (step_ < last_step() && !stopped_) {
    const auto began = std::chrono::steady_clock::now();
    const double waited = loader_->waited_s();
    memory_.reset_peak();
    if (options_.watch) options_.watch->begin_step();
    mesh_.traffic().clear();
    const auto result = train_step();
    ++step_;
    if (!kernels_recorded_ && writes()) folder_->write_recipe(run_toml(*assembly_, registry_));
    if (!kernels_recorded_ && !training_->no_flops.empty()) say("no tflops and no mfu: " + training_->no_flops);
    if (training_->flops || !training_->no_flops.empty()) kernels_recorded_ = true;  // not by a step that ran nothing
    stopped_ = result.stop && step_ < recipe_.run.steps;
    if (receipts_ && !take_receipt(result)) break;
    after_step(result, seconds_since(began), loader_->waited_s() - waited);
    if (result.skipped) require_finite_state();  // else what is kept is of no use
    if (step_ == recipe_.run.steps || stopped_) show_trace();
    if (due(recipe_.validate.every)) show_validation();
    if (!options_.replay && (due(recipe_.checkpoint.every) || step_ == recipe_.run.steps || stopped_)) save();
    if (due(recipe_.validate.grid_every) || (step_ == recipe_.run.steps && recipe_.validate.grid_every > 0))
      show_grid();
  }
  if (saved_step_ < 0 && !options_.replay) save();  // a run of no steps: its initial weights
  if (progress_) progress_->finish();
}

StepResult Trainer::train_step() {
  if (!options_.trace.file.empty() && step_ + 1 == last_step()) chrome_trace_.emplace();
  if (breakdown_) breakdown_->begin();
  try {
    auto result = training_->run(step_, [] { return stop_signal() != 0; });
    if (breakdown_) kernels_ = kernel_counts(breakdown_->take());
    return result;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::numeric) throw;
    throw Error(ErrorKind::numeric, {}, error.what(), way_back());
  }
}

void Trainer::after_step(const StepResult& result, double seconds, double waited) {
  if (recipe_.log.roofline && peak_tflops_ == 0)
    peak_tflops_ = report::matmul_gflops(assembly_->main->ctx->compute, assembly_->main->ctx->device) / 1e3;
  readable_ += result.samples;
  if (!writes()) return;
  const double learned = result.skipped ? 0 : result.samples;
  learned_ += static_cast<int64_t>(learned);
  report::StepRecord record;
  record.step = step_;
  record.samples = training_->samples;
  record.loss = result.loss;
  record.grad_norm = result.grad_norm;
  record.lr = result.lr;
  record.step_s = seconds;
  record.samples_per_s = learned / seconds;
  if (training_->flops) record.tflops = *training_->flops * mesh_.data_ranks() / seconds / 1e12;
  if (peak_tflops_ > 0) record.mfu = report::model_flops_use(record.tflops, peak_tflops_ * mesh_.world_size());
  record.mem_bytes = memory_.peak();
  record.data_wait = waited / seconds;
  record.losses = result.losses;
  record.skipped = result.skipped;
  if (ema_->enabled() && !optimizer_->averages()) record.ema_decay = ema_->decay(training_->updates);
  const bool scaled = assembly_->main->ctx->compute == torch::kHalf;
  if (scaled) record.loss_scale = result.loss_scale;
  if (options_.trace.kernels) record.kernels = kernels_;
  if (options_.trace.comm) {
    record.comm = comm_counts(mesh_.traffic());
    record.mem = memory_shares();
  }
  metrics_->append(record);
  if (const auto line = data_wait_.add(waited, seconds); !line.empty()) say(line);
  if (board_ && due(recipe_.log.tensorboard_every)) board_->add(record);
  const bool is_zero = result.samples > 0 && !result.skipped && result.grad_norm == 0;
  if (is_zero && !gradient_was_zero_)
    say(fmt::format(
        "warning: step {}: the gradient's norm is exactly 0, and nothing is learned: no loss depends on what "
        "learns, or all of it is multiplied by 0",
        step_));
  gradient_was_zero_ = is_zero;
  if (result.samples == 0)
    say(fmt::format("step {}: none of its samples can be learned from: skipped", step_));
  else if (result.skipped)
    say(fmt::format("step {}: the loss is {}, the gradient's norm {}{}: skipped", step_, result.loss, result.grad_norm,
                    scaled ? fmt::format(" at a loss scale of {}", result.loss_scale) : ""));
  progress_->update({step_, learned_, result.loss, record.data_wait, record.mem_bytes});
}

// All ranks refuse alike: a tensor's piece on any of them counts.
void Trainer::require_finite_state() {
  const auto found = not_finite(state(), mesh_.world());
  if (found.empty()) return;
  throw Error(ErrorKind::numeric, fmt::format("step {}", step_),
              found + " holds numbers that are not finite, so this state is not saved",
              "lower lr_schedule.lr, or set run.clip_norm; " + way_back());
}

// No state that is not finite is ever saved.
std::string Trainer::way_back() {
  try {
    saver_->wait();
  } catch (const Error&) {  // then the checkpoint before is the newest
  }
  const auto steps = checkpoint::list(checkpoints()).steps;
  if (steps.empty()) return "there is no checkpoint yet";
  return fmt::format("the newest checkpoint is of step {}, and all its numbers are finite", steps.back().step);
}

void Trainer::require_learned() const {
  if (readable_ > 0 || loop_began_at_ == step_) return;
  throw Error(ErrorKind::data, recipe_.data.where.empty() ? recipe_.name : recipe_.data.where,
              fmt::format("none of the samples of {} steps can be learned from: the weights are those of before",
                          step_ - loop_began_at_),
              "`ditto data verify RECIPE` names what is wrong with each");
}

std::string Trainer::checkpoints() const { return (fs::path(output_folder(recipe_)) / "checkpoints").string(); }

void Trainer::save() {
  begin("saving a checkpoint");
  require_finite_state();
  if (folder_) folder_->require_there();
  if (metrics_) metrics_->sync();
  if (receipt_file_) receipt_file_->sync();
  saver_->save(state());
  saved_step_ = step_;
  if (folder_) folder_->log(fmt::format("saving step {}", step_));
}

void Trainer::begin_receipts() {
  if (!receipts_) return;
  const auto beginning = receipts_->beginning(step_, registry_);
  if (receipt_file_) receipt_file_->begin(beginning, [this](const std::string& line) { say(line); });
  if (options_.replay) options_.replay->begins(beginning);
}

// Whether to go on.
bool Trainer::take_receipt(const StepResult& result) {
  const auto receipt = receipts_->after(step_, result);
  if (receipt_file_) receipt_file_->append(receipt);
  return !options_.replay || options_.replay->made(receipt);
}

bool Trainer::is_any_rank_stopped() {
  auto stopped = torch::tensor({stop_signal() != 0 ? 1 : 0}, torch::kInt);
  return mesh_.world().all_reduce(stopped).item<int>() > 0;
}

void Trainer::begin(const char* what) {
  if (options_.watch) options_.watch->begin(what);
}

void Trainer::expect_same(const std::string& topic, const Facts& facts, ErrorKind kind) {
  if (options_.expect_same) options_.expect_same(topic, facts, kind);
}

// One line, whatever names are in it.
void Trainer::say(const std::string& text) {
  if (!writes()) return;
  const auto line = shown(text, kSentenceShown);
  if (folder_) folder_->log(line);
  if (progress_) {
    progress_->message(line);
  } else {
    report::tell(line);
  }
}

}  // namespace ditto
