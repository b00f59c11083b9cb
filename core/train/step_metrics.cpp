#include "core/train/step_metrics.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include "core/measure/processors.h"
#include "core/measure/roofline.h"
#include "core/ranks/stop.h"

namespace ditto {

StepMetrics::StepMetrics(const Training& training, const StepTrace& trace, report::MemoryMeter& memory, RunLog& log,
                         Checkpointer& checkpointer)
    : training_(training),
      trace_(trace),
      memory_(memory),
      log_(log),
      checkpointer_(checkpointer),
      data_wait_(training.recipe.loader.threads, report::usable_processors()),
      processors_(torch::get_num_threads()),
      peak_tflops_(training.recipe.log.peak_tflops) {}

void StepMetrics::begin_step() {
  began_ = std::chrono::steady_clock::now();
  waited_before_ = training_.loader->waited_s();
  processors_before_ = report::processor_seconds();
  memory_.reset_peak();
}

bool StepMetrics::make_step(TrainingStep& step) {
  bool stop = false;
  guarded(step, [&] { stop = step.make(training_.done, [] { return stop_signal() != 0; }); });
  return stop;
}

void StepMetrics::settle(TrainingStep& step) {
  guarded(step, [&] { step.settle(); });
}

void StepMetrics::guarded(TrainingStep& step, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    // What the step before came to is not lost with this one, but where a device may wait for a rank that is gone.
    if (error.kind() != ErrorKind::distributed) settle(step);
    for (const auto& result : step.results())
      if (!ended_.empty() && result.step <= ended_.back().record.step) add(result);
    if (error.kind() != ErrorKind::numeric) throw;
    throw Error(ErrorKind::numeric, {}, error.what(), checkpointer_.way_back());
  }
}

void StepMetrics::record_kernels() {
  if (has_kernels_) return;
  const auto& step = *training_.step;
  log_.write_recipe(*training_.assembly);
  if (!step.no_flops.empty()) log_.say("no tflops and no mfu: " + step.no_flops);
  has_kernels_ = step.flops || !step.no_flops.empty();  // not by a step that ran nothing
  if (!has_kernels_) return;
  for (const auto& [kernels, choices] : training_.assembly->components.kept()) {
    const auto before = training_.kept_before.find(kernels);
    const auto chosen = choices.size() - (before == training_.kept_before.end() ? 0 : before->second.size());
    if (chosen > 0)
      log_.note(
          fmt::format("kernels '{}' have chosen {} algorithms, which run.toml and checkpoints keep", kernels, chosen));
  }
}

void StepMetrics::end_step() {
  const auto& step = *training_.step;
  const auto& mesh = training_.mesh;
  const auto& ctx = *training_.assembly->main->ctx;
  Ended ended;
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  ended.waited = training_.loader->waited_s() - waited_before_;
  ended.processors = report::processor_seconds() - processors_before_;
  if (training_.recipe.log.roofline && peak_tflops_ == 0)
    peak_tflops_ = report::matmul_gflops(ctx.compute, ctx.device) / 1e3;
  auto& record = ended.record;
  record.step = training_.done;
  record.samples = step.samples;
  record.step_s = ended.seconds;
  if (step.flops) record.tflops = *step.flops * mesh.data_ranks() / ended.seconds / 1e12;
  if (peak_tflops_ > 0) record.mfu = report::model_flops_use(record.tflops, peak_tflops_ * mesh.world_size());
  record.mem_bytes = memory_.peak();
  record.data_wait = ended.waited / ended.seconds;
  if (log_.writes()) trace_.add_to(record);
  ended_.push_back(std::move(ended));
}

void StepMetrics::take(const StepResult& result) {
  add(result);
  if (result.skipped) checkpointer_.require_finite(result.step);  // else what is kept is of no use
}

void StepMetrics::add(const StepResult& result) {
  const auto ended = std::move(ended_.front());
  ended_.pop_front();
  ++steps_;
  readable_ += result.samples;
  if (!log_.writes()) return;
  if (!result.skipped) learned_ += static_cast<int64_t>(result.samples);
  auto record = ended.record;
  add_result(record, result);
  log_.add(record);
  if (const auto line = data_wait_.add(ended.waited, ended.seconds); !line.empty()) log_.say(line);
  // Others than one rank on a processor wait for one another and for devices.
  if (training_.mesh.world_size() == 1 && training_.assembly->main->ctx->device.is_cpu())
    if (const auto line = processors_.add(ended.processors, ended.seconds - ended.waited); !line.empty())
      log_.say(line);
  log_.plot(record);
  say_of(result);
  log_.show_progress({record.step, learned_, result.loss, record.data_wait, record.mem_bytes});
}

void StepMetrics::add_result(report::StepRecord& record, const StepResult& result) const {
  record.loss = result.loss;
  record.grad_norm = result.grad_norm;
  record.lr = result.lr;
  record.samples_per_s = (result.skipped ? 0 : result.samples) / record.step_s;
  record.losses = result.losses;
  record.skipped = result.skipped;
  if (training_.ema->enabled() && !training_.optimizer->averages())
    record.ema_decay = training_.ema->decay(result.updates);
  if (training_.assembly->main->ctx->compute == torch::kHalf) record.loss_scale = result.loss_scale;
}

void StepMetrics::say_of(const StepResult& result) {
  const bool is_zero = result.samples > 0 && !result.skipped && result.grad_norm == 0;
  if (is_zero && !gradient_was_zero_)
    log_.say(
        fmt::format("warning: step {}: the gradient's norm is exactly 0, and nothing is learned: no loss depends on "
                    "what learns, or all of it is multiplied by 0",
                    result.step));
  gradient_was_zero_ = is_zero;
  const bool is_scaled = training_.assembly->main->ctx->compute == torch::kHalf;
  if (result.samples == 0)
    log_.say(fmt::format("step {}: none of its samples can be learned from: skipped", result.step));
  else if (result.skipped)
    log_.say(fmt::format("step {}: the loss is {}, the gradient's norm {}{}: skipped", result.step, result.loss,
                         result.grad_norm, is_scaled ? fmt::format(" at a loss scale of {}", result.loss_scale) : ""));
}

void StepMetrics::require_learned() const {
  if (readable_ > 0 || steps_ == 0) return;
  const auto& recipe = training_.recipe;
  throw Error(
      ErrorKind::data, recipe.data.where.empty() ? recipe.name : recipe.data.where,
      fmt::format("none of the samples of {} steps can be learned from: the weights are those of before", steps_),
      "`ditto data verify RECIPE` names what is wrong with each");
}

}  // namespace ditto
