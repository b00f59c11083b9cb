#include "row_calls.h"

#include <ATen/Parallel.h>

#include <ditto/math/threads.h>

namespace ditto_exact {

namespace {
constexpr Index kColumns = 128;   // that a thread sums at once
constexpr Index kUsualLeaf = 32;  // where none is given
constexpr Index kChain = 256;     // rows of a sum that may go in any order
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

Index token_leaf(const OpInputs& in) {
  const auto it = in.attributes.find("token_leaf");
  if (it == in.attributes.end()) return kUsualLeaf;
  if (const auto* leaf = std::get_if<int64_t>(&it->second)) return *leaf;
  throw ditto::Error(ditto::ErrorKind::plugin, "an op's attribute \"token_leaf\"", "is not a whole number",
                     "give the number of tokens of a leaf");
}

bool wanted(const OpInputs& in, size_t tensor) {
  bool any = false;
  for (const Tensor& x : in.tensors) any = any || (x.defined() && x.requires_grad());
  return in.tensor(tensor).defined() && (!any || in.tensor(tensor).requires_grad());
}

Tokens::Tokens(const Tensor& x, int64_t of_row) : samples(x.size(0)), tokens(1), width(1) {
  const int64_t first = x.dim() - of_row;
  for (int64_t d = 1; d < first; ++d) tokens *= x.size(d);
  for (int64_t d = first; d < x.dim(); ++d) width *= x.size(d);
}

std::vector<Leaf> leaves(Index size, Index length) {
  const Index count = parts(size, length);
  std::vector<Leaf> list;
  for (Index i = 0; i < count; ++i) list.push_back({least(size, (i + 1) * length), merges_after(i, count)});
  return list;
}

std::vector<Leaf> nested(Index samples, Index size, Index length) {
  std::vector<Leaf> list;
  if (size == 0) return list;
  const auto one = leaves(size, length);
  for (Index s = 0; s < samples; ++s) {
    for (const auto& [end, merges] : one) list.push_back({s * size + end, merges});
    list.back().merges += merges_after(s, samples);
  }
  return list;
}

std::vector<Leaf> row_leaves(const OpInputs& in, Index samples, Index tokens, Index rows) {
  return in.has("token_leaf") ? nested(samples, tokens * rows, token_leaf(in) * rows)
                              : leaves(samples * tokens * rows, kChain);
}

Terms::Terms(Index size) : runs{{0, size}}, cut{{size, 0}} {}
Terms::Terms(std::vector<Leaf> of) : runs{{0, of.empty() ? 0 : of.back().end}}, cut(std::move(of)) {}
Terms::Terms(const OpInputs& in, const char* attribute, Index size) : Terms(size) {
  if (!in.has(attribute)) return;
  const auto& list = in.list(attribute);
  const Index count = list.empty() ? 0 : list[0];
  Index all = 0;
  bool whole = count > 0;
  for (size_t i = 1; i < list.size(); ++i) all += list[i], whole = whole && list[i] >= 0 && list[i] % count == 0;
  if (!whole || all != size)
    throw ditto::Error(ditto::ErrorKind::plugin, std::string("an op's attribute \"") + attribute + "\"",
                       "does not cut a dim of " + std::to_string(size) + " numbers into equal leaves",
                       "give the number of leaves, then the widths of the dim's parts, each a multiple of it");
  runs.clear();
  for (Index u = 0; u < count; ++u) {
    Index start = 0;
    for (size_t i = 1; i < list.size(); ++i) {
      const Run run{start + u * (list[i] / count), list[i] / count};
      if (!runs.empty() && runs.back().start + runs.back().length == run.start)
        runs.back().length += run.length;
      else
        runs.push_back(run);
      start += list[i];
    }
  }
  if (size > 0) cut = leaves(size, size / count);
}
Order Terms::order() const {
  return {runs.data(), static_cast<Index>(runs.size()), cut.data(), static_cast<Index>(cut.size())};
}

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

}  // namespace ditto_exact
