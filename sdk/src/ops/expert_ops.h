// The ops of experts and their routers: their meaning, cases and tolerances.
#pragma once

#include <ditto/kernels.h>

#include "ops/layer_ops.h"

namespace ditto {

std::vector<Op> expert_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
