#include "core/train/checkpointer.h"

#include <filesystem>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "core/checkpoint/disk.h"
#include "core/console/progress.h"
#include "core/network/finite.h"
#include "core/train/resume_run.h"

namespace ditto {

namespace {

// On any rank: a pipeline's have shapes of their own.
std::map<std::string, std::string> kept_on_all(const Components& components, const Group& world) {
  const auto kept = components.kept();
  if (kept.empty()) return {};
  std::map<std::string, std::string> notes;
  for (const auto& of_rank : world.all_gather_text(nlohmann::json(notes_of(kept)).dump()))
    notes.merge(nlohmann::json::parse(of_rank).get<std::map<std::string, std::string>>());
  return notes;
}

}  // namespace

Checkpointer::Checkpointer(Training& training, RunLog& log, const Group& ranks)
    : training_(training), log_(log), ranks_(ranks) {}

void Checkpointer::open() {
  const auto& options = training_.recipe.checkpoint;
  saver_ = std::make_unique<checkpoint::Saver>(
      training_.checkpoints(), checkpoint::Retention{options.keep, options.keep_every}, training_.mesh, ranks_,
      [this](const std::string& line) { log_.say("warning: " + line); });
}

void Checkpointer::say_disk() {
  const auto& recipe = training_.recipe;
  const auto folder = training_.checkpoints();
  auto bytes = torch::tensor({checkpoint::bytes_to_write(train_state(training_), training_.mesh)}, torch::kLong);
  const auto one = training_.mesh.world().all_reduce(bytes).item<int64_t>();
  if (!log_.writes()) return;
  const auto kept = recipe.checkpoint.most_kept(recipe.run.steps);
  log_.say(
      fmt::format("checkpoints: {} each{}", report::bytes_text(one),
                  kept == 1 ? "" : fmt::format(", of the {} that are kept {}", kept, report::bytes_text(kept * one))));
  std::error_code unknown;
  const auto free = std::filesystem::space(folder, unknown).available;
  // An old one goes when the new one is there.
  const auto more = kept + 1 - static_cast<int64_t>(checkpoint::list(folder).steps.size());
  if (!unknown && more > 0 && static_cast<double>(more) * static_cast<double>(one) > static_cast<double>(free))
    log_.say(
        fmt::format("warning: {} are free where they go, and {} more take {}: lower checkpoint.keep, or set "
                    "run.output to another disk",
                    report::bytes_text(static_cast<int64_t>(free)), more, report::bytes_text(more * one)));
}

void Checkpointer::save() {
  require_finite(training_.done);
  log_.secure();
  auto state = train_state(training_);
  state.extra.merge(kept_on_all(training_.assembly->components, training_.mesh.world()));
  saver_->save(state);
  log_.note(fmt::format("saving step {}", training_.done));
}

// A tensor's piece on any rank counts.
void Checkpointer::require_finite(int64_t step) {
  const auto found = not_finite(train_state(training_), training_.mesh.world());
  if (found.empty()) return;
  throw Error(ErrorKind::numeric, fmt::format("step {}", step),
              found + " holds numbers that are not finite, so this state is not saved",
              "lower lr_schedule.lr, or set run.clip_norm; " + way_back());
}

// No state that is not finite is ever saved.
std::string Checkpointer::way_back() {
  try {
    saver_->wait();
  } catch (const Error&) {  // then the checkpoint before is the newest
  }
  auto steps = checkpoint::list(training_.checkpoints()).steps;
  std::erase_if(steps, [&](const auto& one) { return one.step > training_.done; });  // of a run that stood here before
  if (steps.empty()) return "there is no checkpoint yet";
  return fmt::format("the newest checkpoint is of step {}, and all its numbers are finite", steps.back().step);
}

void Checkpointer::wait() { saver_->wait(); }

}  // namespace ditto
