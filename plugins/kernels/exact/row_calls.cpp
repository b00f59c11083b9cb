#include "row_calls.h"

#include <ATen/Parallel.h>

#include <ditto/math/threads.h>

namespace ditto_exact {

namespace {
constexpr Index kColumns = 128;  // that a thread sums at once
}  // namespace

bool fits(const OpCall& call) {
  if (call.device != torch::kCPU || call.dtype != torch::kFloat) return false;
  for (const Tensor& x : call.inputs.tensors)
    if (x.defined() && x.is_floating_point() && x.scalar_type() != torch::kFloat) return false;
  return true;
}
bool fits_with_leaf(const OpCall& call) { return fits(call) && token_leaf(call.inputs) > 0; }
int product_score(const Kernels& k, const OpCall& call) {
#if defined(__x86_64__)
  if (!call.inputs.has("token_leaf") && __builtin_cpu_is("intel")) return 1;
#endif
  return k.score;
}
int map_score(const Kernels& k, const OpCall& call) { return call.inputs.has("token_leaf") ? k.score : 1; }

// Several pieces for each thread: a core that also does something else does less.
void share(Index count, void* what, void (*task)(void* what, Index begin, Index end)) {
  ditto::in_threads(count, most(1, count / (16 * at::get_num_threads())),
                    [=](Index begin, Index end) { task(what, begin, end); });
}

Workers workers() {
  return {at::in_parallel_region() ? 1 : at::get_num_threads(),
          [](Index count, void* what, void (*task)(void*, Index, Index)) { share(count, what, task); }};
}

Tensor sum_of_rows(const Kernels& k, const RowSum& sum, const Tokens& x, const std::vector<Leaf>& cut) {
  auto out = torch::empty({x.width}, torch::kFloat);
  RowSum all = sum;
  all.sum = place(out), all.width = x.width, all.leaves = cut.data(), all.leaf_count = static_cast<Index>(cut.size());
  in_parts(parts(x.width, kColumns), kColumns * x.rows(),
           [&](Index begin, Index end) { k.row_sum(all, begin * kColumns, least(x.width, end * kColumns)); });
  return out;
}

Tensor sums_of_samples(const Kernels& k, const RowSum& sum, const Tokens& x, Index leaf) {
  const auto cut = leaves(x.tokens, leaf);
  auto out = torch::empty({x.samples, x.width}, torch::kFloat);
  const Index columns = parts(x.width, kColumns);
  in_parts(x.samples * columns, kColumns * x.tokens, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index s = i / columns, first = i % columns * kColumns, row = s * x.tokens;
      RowSum one = sum;
      one.x += row * x.width, one.sum = place(out) + s * x.width, one.width = x.width;
      if (one.y) one.y += row * x.width;
      if (one.mean) one.mean += row;
      if (one.rstd) one.rstd += row;
      one.leaves = cut.data(), one.leaf_count = static_cast<Index>(cut.size());
      k.row_sum(one, first, least(x.width, first + kColumns));
    }
  });
  return out;
}

Tensor sums_of_channels(const Kernels& k, const Tensor& map, Index leaf) {
  auto sums = torch::empty({map.size(0), map.size(1)}, torch::kFloat);
  const Index rows = sums.numel(), places = rows > 0 ? map.numel() / rows : 0;
  const auto cut = leaves(places, leaf);
  in_parts(rows, places, [&](Index begin, Index end) {
    k.number_sums(numbers(map), places, cut.data(), static_cast<Index>(cut.size()), place(sums), begin, end);
  });
  return sums;
}

Tensor sum_of_samples(const Kernels& k, const Tensor& rows_SC, const OpInputs& in) {
  return sum_of_rows(k, {numbers(rows_SC)}, Tokens(rows_SC), row_leaves(in, rows_SC.size(0), 1));
}

}  // namespace ditto_exact
