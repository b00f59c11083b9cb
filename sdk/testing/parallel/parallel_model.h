// A small video model with all that strategies cut, carry, exchange or compute again: attention in space, in time, over
// all tokens and over those that a mask leaves, with grouped heads and rotary angles; cross-attention to text; experts
// with a loss of their balance; a long skip; constants.
#pragma once

#include <memory>

#include <ditto/model.h>

namespace ditto::testing {

std::shared_ptr<Model> parallel_model();

// Two samples, made from `number` alone; in double precision. "target" is as the prediction.
Batch parallel_batch(int64_t number);

}  // namespace ditto::testing
