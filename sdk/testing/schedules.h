// Two schedules by themselves, for tests of samplers.
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <ditto/scheduler.h>

namespace ditto::testing {

// x_t = (1 - t) clean + t noise; predicts noise - clean.
std::unique_ptr<Scheduler> straight_schedule();
// x_t = clean + t noise; predicts clean, by c_skip x_t + c_out F.
std::unique_ptr<Scheduler> preconditioned_schedule();
// x_t = cos(pi t / 2) clean + sin(pi t / 2) noise; predicts noise; a chain of Gaussian steps.
std::unique_ptr<Scheduler> circular_schedule();

}  // namespace ditto::testing
