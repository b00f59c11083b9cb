#include <ditto/math/threads.h>

#include <algorithm>
#include <atomic>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

namespace ditto {

// A TensorIterator's loop runs in LibTorch itself, on whatever threads that was built with; an OpenMP of our own would
// be a second set of threads beside them. Of the iterator nothing is used but its length, one element a thread. Whoever
// is free takes the next piece: a core that also does something else does less.
void in_threads(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& task) {
  if (count <= 0) return;
  const int64_t pieces = (count - 1) / grain + 1;
  const int64_t threads = at::in_parallel_region() ? 1 : std::min<int64_t>(pieces, at::get_num_threads());
  if (threads <= 1) return task(0, count);
  std::atomic<int64_t> next{0};
  const auto loop = [&](char**, const int64_t*, int64_t, int64_t) {
    for (int64_t piece; (piece = next.fetch_add(1)) < pieces;)
      task(piece * grain, std::min(count, (piece + 1) * grain));
  };
  auto one_each = at::empty({threads}, at::kByte);
  at::TensorIterator::nullary_op(one_each).for_each(loop, 1);
}

}  // namespace ditto
