// What a run says of itself at its beginning and at its end.
#pragma once

#include "core/train/run_log.h"
#include "core/train/training.h"

namespace ditto {

void say_beginning(const Training& training, RunLog& log);

enum class RunEnd { complete, complete_before, stopped };  // before: all its steps were made by an earlier start
void say_end(const Training& training, RunEnd end, RunLog& log);

}  // namespace ditto
