// The ops of layers, losses and optimizers: their meaning, cases and tolerances.
#pragma once

#include <ditto/kernels.h>

namespace ditto {

// Fixed numbers of a shape in a dtype, times a scale, as a leaf that wants a gradient.
using MakeScaledNumbers =
    std::function<torch::Tensor(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype, double scale)>;

std::vector<Op> layer_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
