// The ops of maps: their meaning, cases and tolerances.
#pragma once

#include "ops/layer_ops.h"

namespace ditto {

std::vector<Op> map_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);
Op resample_op(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

// The case with a map whose channels lie side by side.
Op::Case channels_last(Op::Case one);

}  // namespace ditto
