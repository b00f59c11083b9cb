// What estimates of the data are brought into while sampling.
#pragma once

#include <functional>

#include <torch/types.h>

#include "core/config/recipe.h"

namespace ditto {

// Of [sampler] clip: x_0 [B, C, …] double -> the same, each sample by itself. "static": -1 … 1. "dynamic": with s the
// given percentile of the sample's absolute values and 1 at least, -s … s divided by s (Saharia et al., 2022,
// arXiv:2205.11487, section 2.3). Empty: "none".
std::function<torch::Tensor(const torch::Tensor& clean)> clip_of(const Recipe& recipe);

}  // namespace ditto
