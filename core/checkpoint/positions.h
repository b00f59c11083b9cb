// Learned tables of positions for another size.
#pragma once

#include <vector>

#include <torch/types.h>

namespace ditto::checkpoint {

// Tables of one to three dims of places, and one of numbers for each, which both have alike.
bool can_interpolate(const std::vector<int64_t>& from, const std::vector<int64_t>& to);
// The table at the places of a finer or coarser grid over the same picture: linear along one dim, bicubic along two,
// trilinear along three. In its own dtype; computed in fp64.
torch::Tensor interpolated(const torch::Tensor& table, const std::vector<int64_t>& to);

}  // namespace ditto::checkpoint
