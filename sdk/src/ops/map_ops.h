// The ops of maps: their meaning, cases and tolerances.
#pragma once

#include "ops/layer_ops.h"

namespace ditto {

std::vector<Op> map_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
