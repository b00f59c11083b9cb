// A parameter, or its gradient, put together from what the ranks hold.
#pragma once

#include <ditto/layout.h>

namespace ditto {

// `local` is shaped as entry.tensor; the result has entry.full_shape, on every rank. Called by all ranks that share the
// parameter.
torch::Tensor whole(const LayoutEntry& entry, const torch::Tensor& local, const Mesh& mesh);

}  // namespace ditto
