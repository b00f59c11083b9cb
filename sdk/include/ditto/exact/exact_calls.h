// What may be computed beside the op table under run.numerics = "one": one list, for the host, which refuses the other
// calls of a run's first step, and for the checks of plugins, which name them before.
#pragma once

#include <ATen/record_function.h>

#include <ditto/visibility.h>

namespace ditto {

// Whether a call's results may depend on threads, sizes, or instructions. Calls that move numbers, compare them, or
// compute each by one operation of IEEE arithmetic do not, nor do calls that no floating-point number goes into (meta
// tensors have none), nor functions that are not LibTorch's ("aten::…"). To be asked in a callback that needsInputs.
DITTO_API bool is_inexact(const at::RecordFunction& call);

}  // namespace ditto
