// Work shared among LibTorch's threads.
#pragma once

#include <cstdint>
#include <functional>

namespace ditto {

// Calls task for pieces of [0, count) that cover it, each but the last of `grain` numbers, from all threads of LibTorch.
// (at::parallel_for is a template, which runs everything on the caller in whatever is compiled without OpenMP: here.)
void in_threads(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task);

}  // namespace ditto
