#include "core/config/late_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/config/numerics.h"

namespace ditto {

namespace {

// The first step of the run that is a multiple of both, or its last one where that is a multiple of `keep_every`.
bool keeps_one(const CheckpointOptions& checkpoint, int64_t steps) {
  if (steps % checkpoint.keep_every == 0) return true;
  for (int64_t step = checkpoint.keep_every; checkpoint.every > 0 && step < steps; step += checkpoint.keep_every)
    if (step % checkpoint.every == 0) return true;
  return false;
}

}  // namespace

std::vector<std::string> late_options(const Recipe& recipe) {
  const int64_t steps = recipe.run.steps;
  std::vector<std::string> lines;
  if (steps == 0) return lines;
  const auto add = [&](bool late, const char* option, const std::string& what) {
    if (late) lines.push_back(fmt::format("{} takes no effect in run.steps = {}: {}", option, steps, what));
  };
  const auto& rate = recipe.lr_schedule;
  const double share = static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(1, rate.warmup));
  add(rate.warmup > steps, "lr_schedule.lr",
      fmt::format("the warm-up of {} steps ends it at {:.3g} of {:.3g}", rate.warmup, rate.lr * share, rate.lr));
  add(rate.kind != LrScheduleOptions().kind && rate.warmup >= steps, "lr_schedule.kind",
      fmt::format("the warm-up of {} steps leaves none in which the rate falls", rate.warmup));
  const auto every = [&](int64_t number, const char* option, const char* what) { add(number > steps, option, what); };
  every(recipe.validate.every, "validate.every", "there will be no validation");
  every(recipe.validate.grid_every, "validate.grid_every", "there will be one sheet, of the last step");
  every(recipe.log.tensorboard ? recipe.log.tensorboard_every : 0, "log.tensorboard_every",
        "TensorBoard's events will have no scalars");
  every(recipe.record.receipts && recipe.record.average_every != RecordOptions().average_every
            ? recipe.record.average_every
            : 0,
        "record.average_every", "receipts will have the average's hash where a checkpoint is alone");
  every(recipe.run.loss_scale_every != RunOptions().loss_scale_every ? recipe.run.loss_scale_every : 0,
        "run.loss_scale_every", "the loss scale will not be doubled");
  every(recipe.checkpoint.every != CheckpointOptions().every ? recipe.checkpoint.every : 0, "checkpoint.every",
        "there will be one checkpoint, of the last step");
  add(recipe.checkpoint.keep_every > 0 && !keeps_one(recipe.checkpoint, steps), "checkpoint.keep_every",
      "no step with a checkpoint is a multiple of it");
  return lines;
}

std::vector<std::string> notes_on_options(const Recipe& recipe) {
  std::vector<std::string> lines;
  for (const auto& line : recipe.left_out) lines.push_back("left out: " + line.substr(0, line.rfind(';')));
  for (const auto& line : late_options(recipe)) lines.push_back("warning: " + line);
  if (const auto idle = idle_bf16(recipe); !idle.empty()) lines.push_back("warning: " + idle);
  if (recipe.bf16_was_measured && !recipe.run.bf16_in_fp32.empty())
    lines.push_back(fmt::format("bf16: {} in fp32, the faster way on the processor that the run began on, as measured",
                                fmt::join(recipe.run.bf16_in_fp32, ", ")));
  if (is_one_number(recipe) && recipe.run.memory_format != kMeasured)
    lines.push_back(
        "warning: run.memory_format says how maps lie, and run.numerics = \"one\" has kernels of its own: it "
        "changes nothing");
  else if (recipe.memory_format_was_measured)
    lines.push_back(fmt::format("maps: {}, the faster way on the machine that the run began on, as measured",
                                recipe.run.memory_format));
  return lines;
}

}  // namespace ditto
