// The ops of layers, losses and optimizers: their meaning, cases and tolerances.
#pragma once

#include <ditto/kernels.h>

namespace ditto {

// Fixed numbers of a shape in a dtype, times a scale, as a leaf that wants a gradient.
using MakeScaledNumbers =
    std::function<torch::Tensor(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype, double scale)>;

// x weight^T + bias, or without, by the call's attribute "bf16".
torch::Tensor linear_map(const OpInputs& in, const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias);

std::vector<Op> layer_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
