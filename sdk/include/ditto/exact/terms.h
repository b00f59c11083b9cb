// The leaves of an op's sums, as its attributes say them (<ditto/exact/leaves.h>): for rows of kernels that are exact.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/exact/leaves.h>
#include <ditto/kernels.h>

namespace ditto::exact {

constexpr Index kUsualLeaf = 32;  // tokens, where none is given
constexpr Index kChain = 256;     // rows of a sum that may go in any order

// The tokens of a leaf; throws Error(plugin) where "token_leaf" is no whole number.
inline Index token_leaf(const OpInputs& in) {
  const auto it = in.attributes.find("token_leaf");
  if (it == in.attributes.end()) return kUsualLeaf;
  if (const auto* leaf = std::get_if<int64_t>(&it->second)) return *leaf;
  throw Error(ErrorKind::plugin, "an op's attribute \"token_leaf\"", "is not a whole number",
              "give the number of tokens of a leaf");
}
// Of a backward: whether a gradient of this tensor is wanted.
inline bool wanted(const OpInputs& in, size_t tensor) {
  bool any = false;
  for (const torch::Tensor& x : in.tensors) any = any || (x.defined() && x.requires_grad());
  return in.tensor(tensor).defined() && (!any || in.tensor(tensor).requires_grad());
}
// x [S, …, K] as samples of tokens of `width` numbers; the last `of_row` dims are a token's.
struct Tokens {
  explicit Tokens(const torch::Tensor& x, int64_t of_row = 1);
  Index samples, tokens, width;
  Index rows() const { return samples * tokens; }
};
inline Tokens::Tokens(const torch::Tensor& x, int64_t of_row) : samples(x.size(0)), tokens(1), width(1) {
  const int64_t first = x.dim() - of_row;
  for (int64_t d = 1; d < first; ++d) tokens *= x.size(d);
  for (int64_t d = first; d < x.dim(); ++d) width *= x.size(d);
}
// Leaves of a dim, and of samples of a dim: a tree over samples, each of them a tree over its leaves.
inline std::vector<Leaf> leaves(Index size, Index length) {
  const Index count = parts(size, length);
  std::vector<Leaf> list;
  for (Index i = 0; i < count; ++i) list.push_back({least(size, (i + 1) * length), merges_after(i, count)});
  return list;
}

inline std::vector<Leaf> nested(Index samples, Index size, Index length) {
  std::vector<Leaf> list;
  if (size == 0) return list;
  const auto one = leaves(size, length);
  for (Index s = 0; s < samples; ++s) {
    for (const auto& [end, merges] : one) list.push_back({s * size + end, merges});
    list.back().merges += merges_after(s, samples);
  }
  return list;
}
// Of a sum over the rows of samples of so many tokens each, of `rows` rows: by leaves of tokens where the call gives
// their length, else in long chains through all rows, which are faster.
inline std::vector<Leaf> row_leaves(const OpInputs& in, Index samples, Index tokens, Index rows = 1) {
  return in.has("token_leaf") ? nested(samples, tokens * rows, token_leaf(in) * rows)
                              : leaves(samples * tokens * rows, kChain);
}
// How a sum goes through a dim: in one chain, or by a list of the op's attributes: {leaves, width of part 0, of part 1,
// …}; throws Error(plugin) for a list that does not cut the dim into equal leaves.
struct Terms {
  explicit Terms(Index size);
  explicit Terms(std::vector<Leaf> of);
  Terms(const OpInputs& in, const char* attribute, Index size);
  Order order() const;
  std::vector<Run> runs;
  std::vector<Leaf> cut;
};
inline Terms::Terms(Index size) : runs{{0, size}}, cut{{size, 0}} {}
inline Terms::Terms(std::vector<Leaf> of) : runs{{0, of.empty() ? 0 : of.back().end}}, cut(std::move(of)) {}
inline Terms::Terms(const OpInputs& in, const char* attribute, Index size) : Terms(size) {
  if (!in.has(attribute)) return;
  const auto& list = in.list(attribute);
  const Index count = list.empty() ? 0 : list[0];
  Index all = 0;
  bool whole = count > 0;
  for (size_t i = 1; i < list.size(); ++i) all += list[i], whole = whole && list[i] >= 0 && list[i] % count == 0;
  if (!whole || all != size)
    throw Error(ErrorKind::plugin, std::string("an op's attribute \"") + attribute + "\"",
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
inline Order Terms::order() const {
  return {runs.data(), static_cast<Index>(runs.size()), cut.data(), static_cast<Index>(cut.size())};
}
}  // namespace ditto::exact
