#include "core/train/checkpointer.h"

#include <fmt/format.h>

#include "core/checkpoint/disk.h"
#include "core/network/finite.h"
#include "core/train/resume_run.h"

namespace ditto {

Checkpointer::Checkpointer(Training& training, RunLog& log, const Group& ranks)
    : training_(training), log_(log), ranks_(ranks) {}

void Checkpointer::open() {
  const auto& options = training_.recipe.checkpoint;
  saver_ = std::make_unique<checkpoint::Saver>(
      training_.checkpoints(), checkpoint::Retention{options.keep, options.keep_every}, training_.mesh, ranks_,
      [this](const std::string& line) { log_.say("warning: " + line); });
}

void Checkpointer::save() {
  require_finite();
  log_.secure();
  saver_->save(train_state(training_));
  log_.note(fmt::format("saving step {}", training_.done));
}

// A tensor's piece on any rank counts.
void Checkpointer::require_finite() {
  const auto found = not_finite(train_state(training_), training_.mesh.world());
  if (found.empty()) return;
  throw Error(ErrorKind::numeric, fmt::format("step {}", training_.done),
              found + " holds numbers that are not finite, so this state is not saved",
              "lower lr_schedule.lr, or set run.clip_norm; " + way_back());
}

// No state that is not finite is ever saved.
std::string Checkpointer::way_back() {
  try {
    saver_->wait();
  } catch (const Error&) {  // then the checkpoint before is the newest
  }
  const auto steps = checkpoint::list(training_.checkpoints()).steps;
  if (steps.empty()) return "there is no checkpoint yet";
  return fmt::format("the newest checkpoint is of step {}, and all its numbers are finite", steps.back().step);
}

void Checkpointer::wait() { saver_->wait(); }

}  // namespace ditto
