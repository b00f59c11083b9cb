// The learning rate of each step. (A noise schedule is a Scheduler.)
#pragma once

#include "core/config/run_options.h"

namespace ditto {

class LrSchedule {
 public:
  LrSchedule(const LrScheduleOptions& options, int64_t steps) : options_(options), steps_(steps) {}
  // Of the step that makes `step` + 1 complete ones. A linear rise from lr / warmup to lr, then the kind's shape down
  // to final_share * lr at the last step.
  double at(int64_t step) const;

 private:
  LrScheduleOptions options_;
  int64_t steps_;
};

}  // namespace ditto
