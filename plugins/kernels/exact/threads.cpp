// Work shared among LibTorch's own threads. at::parallel_for is a template: in a library that is compiled without
// OpenMP, as plugins are, it runs everything on the caller, and an OpenMP of our own would be a second set of threads
// beside LibTorch's. A TensorIterator's loop is run by LibTorch itself, on whatever threads it was built with; of the
// iterator nothing is used but its length, one element a thread.
#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include "row_calls.h"

namespace ditto_exact {

void share(Index count, void* what, void (*task)(void* what, Index begin, Index end)) {
  if (count <= 0) return;
  const Index threads = at::in_parallel_region() ? 1 : least(count, at::get_num_threads());
  if (threads <= 1) return task(what, 0, count);
  // Whoever is free takes the next piece: a core that also does something else does less.
  const Index piece = most(1, count / (16 * threads));
  std::atomic<Index> next{0};
  const auto loop = [&](char**, const int64_t*, int64_t, int64_t) {
    for (Index begin; (begin = next.fetch_add(piece)) < count;) task(what, begin, least(count, begin + piece));
  };
  auto one_each = torch::empty({threads}, torch::kByte);
  at::TensorIterator::nullary_op(one_each).for_each(loop, 1);
}

}  // namespace ditto_exact
