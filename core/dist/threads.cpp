#include "core/dist/threads.h"

#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <torch/types.h>

namespace ditto {

// A TensorIterator's loop runs in LibTorch itself, on whatever threads that was built with. Of the iterator nothing is
// used but its length, one element a thread; whoever is free takes the next piece.
void in_threads(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task) {
  const int64_t pieces = (count + grain - 1) / grain;
  const int64_t threads = at::in_parallel_region() ? 1 : std::min<int64_t>(pieces, at::get_num_threads());
  std::atomic<int64_t> next{0};
  const auto loop = [&](char**, const int64_t*, int64_t, int64_t) {
    for (int64_t begin; (begin = grain * next.fetch_add(1)) < count;) task(begin, std::min(count, begin + grain));
  };
  auto one_each = torch::empty({std::max<int64_t>(threads, 1)}, torch::kByte);
  at::TensorIterator::nullary_op(one_each).for_each(loop, 1);
}

}  // namespace ditto
