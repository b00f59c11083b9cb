// The ops over lists of parameters and gradients: their meaning, cases and tolerances.
#pragma once

#include "ops/layer_ops.h"

namespace ditto {

std::vector<Op> update_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
