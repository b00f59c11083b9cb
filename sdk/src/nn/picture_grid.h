// Patches of a picture [..., H, W], as PatchEmbed and Patches cut it. Throws Error(shape) for one that is not made of
// patches of that side.
#pragma once

#include <ditto/stream.h>

namespace ditto {

Grid picture_grid(const torch::Tensor& x, int64_t patch);

}  // namespace ditto
