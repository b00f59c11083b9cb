// Attention's ops: their meaning, cases and tolerances.
#pragma once

#include <ditto/kernels.h>

namespace ditto {

// Fixed numbers of a shape in a dtype, as a leaf that wants a gradient.
using MakeNumbers = std::function<torch::Tensor(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype)>;

std::vector<Op> attention_ops(const MakeNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance);

}  // namespace ditto
