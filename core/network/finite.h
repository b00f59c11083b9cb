// Whether what a run has learned is still numbers: what is not is neither saved nor used.
#pragma once

#include <string>

#include "core/checkpoint/checkpoint.h"

namespace ditto {

// The name of a tensor of the state, on any rank, that holds a number that is not finite: "weight 'head.bias'",
// "optimizer state 'exp_avg_sq' of 'head.bias'". "": all are finite. Called by every member of `ranks`.
std::string not_finite(const checkpoint::TrainState& state, const Group& ranks = {});

// Throws Error(checkpoint) where a weight that was read from `path` is not finite.
void require_finite(const Layout& layout, const std::string& path);

}  // namespace ditto
