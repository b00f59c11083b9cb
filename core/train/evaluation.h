// What a training shows of its model between steps, by the average of its weights. Called by all ranks.
#pragma once

#include "core/train/run_log.h"
#include "core/train/training.h"

namespace ditto {

// The loss on held-out data, into metrics and TensorBoard.
void log_validation(Training& training, RunLog& log);
// A grid of samples, into samples/ and TensorBoard. What keeps one rank alone from it is thrown; all else is a warning.
void log_samples(Training& training, RunLog& log);

}  // namespace ditto
