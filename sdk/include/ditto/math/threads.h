// Work shared among LibTorch's threads.
#pragma once

#include <cstdint>
#include <functional>

#include <ditto/visibility.h>

namespace ditto {

// Calls task for pieces [begin, end) of `grain` > 0 numbers (the last: what is left) that cover [0, count), from as
// many threads as at::get_num_threads() says, the caller's among them, and returns when all are done. Which thread
// takes which piece is not fixed, so that a number has to be one task's own. Where there is but one piece or one
// thread, and within another such call or an operation of LibTorch, the caller runs task(0, count). What a task throws
// is thrown here, of several exceptions one.
//
// Instead of at::parallel_for, a template, which runs everything on the caller in what is compiled without OpenMP:
// Ditto and its plugins.
DITTO_API void in_threads(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task);

}  // namespace ditto
