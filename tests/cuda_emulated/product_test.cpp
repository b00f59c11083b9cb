// The exact product beside the CPU's, plugins/kernels/exact: the same bits.
#include <algorithm>

#include "../../plugins/kernels/exact/kernels.h"
#include "check.h"

namespace check {

namespace {

using ditto_exact::merges_after;

enum class Layout { rows, columns };  // an operand's numbers of one row, or of one column, follow one another

struct Sum {
  std::vector<ditto_exact::Run> runs;
  std::vector<ditto_exact::Leaf> leaves;
};
Sum in_leaves(Index K, Index length) {
  const Index count = (K + length - 1) / length;
  Sum sum{{{0, K}}, {}};
  for (Index i = 0; i < count; ++i) sum.leaves.push_back({std::min(K, (i + 1) * length), merges_after(i, count)});
  return sum;
}
// A tree over samples, of a tree over each one's leaves of tokens.
Sum in_samples(Index samples, Index tokens, Index length) {
  const auto one = in_leaves(tokens, length);
  Sum sum{{{0, samples * tokens}}, {}};
  for (Index s = 0; s < samples; ++s) {
    for (const auto& [end, merges] : one.leaves) sum.leaves.push_back({s * tokens + end, merges});
    sum.leaves.back().merges += merges_after(s, samples);
  }
  return sum;
}
// As "in_leaves" {units, width, width, …}: unit u has its part of each width.
Sum in_units(Index units, const std::vector<Index>& widths) {
  Index K = 0;
  for (const Index w : widths) K += w;
  Sum sum = in_leaves(K, K / units);
  sum.runs.clear();
  for (Index u = 0; u < units; ++u) {
    Index start = 0;
    for (const Index w : widths) sum.runs.push_back({start + u * (w / units), w / units}), start += w;
  }
  return sum;
}

struct Shape {
  Index M, N, K;
  Layout a, b;
  bool bias = true, bf16 = false;
};

void product(const char* name, const Shape& shape, const Sum& sum) {
  const auto [M, N, K, a_layout, b_layout, with_bias, bf16] = shape;
  Case c("exact product", name, Storage::fp32);
  const auto floats = [](Index count, unsigned which) {
    const auto all = drawn(static_cast<std::size_t>(count), which);
    return std::vector<float>(all.begin(), all.end());
  };
  const auto a = floats(M * K, 1), b = floats(K * N, 2), bias = floats(N, 3);
  const Array<float> of_a(a), of_b(b), of_bias(bias), out(static_cast<std::size_t>(M * N));
  std::vector<Index> places;
  for (const auto& run : sum.runs)
    for (Index i = 0; i < run.length; ++i) places.push_back(run.start + i);
  std::vector<ditto_cuda::Leaf> leaves;
  Index open = 0, most = 0;
  for (const auto& [end, merges] : sum.leaves) {
    leaves.push_back({end, merges});
    most = std::max(most, open);
    open += 1 - merges;
  }
  const Array<Index> of_places(places);
  const Array<ditto_cuda::Leaf> of_leaves(leaves);
  const Array<float> room(static_cast<std::size_t>(ditto_cuda::open_room(M, N, most)));
  const auto at = [](const float* p, Layout layout, Index rows, Index columns) {
    return layout == Layout::rows ? ditto_cuda::View{p, columns, 1} : ditto_cuda::View{p, 1, rows};
  };
  const auto view_a = at(of_a.at(), a_layout, M, K), view_b = at(of_b.at(), b_layout, K, N);
  c.launched(ditto_cuda::exact_product({M, N, K, view_a, view_b, out.at(), N, with_bias ? of_bias.at() : nullptr,
                                        sum.runs.size() > 1 ? of_places.at() : nullptr, of_leaves.at(),
                                        static_cast<Index>(leaves.size()), bf16, room.at()},
                                       most, nullptr));
  std::vector<float> want(static_cast<std::size_t>(M * N));
  ditto_exact::kPlain.product(
      {M,
       N,
       K,
       {a.data(), view_a.rows, view_a.columns},
       {b.data(), view_b.rows, view_b.columns},
       want.data(),
       N,
       with_bias ? bias.data() : nullptr,
       {sum.runs.data(), static_cast<Index>(sum.runs.size()), sum.leaves.data(), static_cast<Index>(sum.leaves.size())},
       bf16},
      {1, nullptr});
  c.expect_bits("C", out.read().data(), want.data(), want.size() * sizeof(float));
}

}  // namespace

void products() {
  const auto r = Layout::rows, c = Layout::columns;
  // Of a layer: its output, its input's gradient, its weight's gradient.
  product("small", {10, 24, 16, r, c}, in_leaves(16, 16));
  product("odd", {21, 41, 37, r, c}, in_leaves(37, 37));
  product("no bias", {18, 24, 16, r, c, false}, in_leaves(16, 16));
  product("tiles and rests", {201, 102, 70, r, c}, in_leaves(70, 70));
  product("runs of inputs", {27, 24, 32, r, c}, in_units(4, {32}));
  product("heads of outputs, of x", {27, 16, 32, r, r}, in_units(2, {16, 8, 8}));
  product("runs of both, of x", {27, 36, 40, r, r}, in_units(5, {40}));
  product("bf16", {27, 41, 37, r, c, true, true}, in_leaves(37, 37));
  product("of the weight", {41, 37, 3 * 67, c, r}, in_samples(3, 67, 32));
  product("of the weight, leaves of 4", {24, 16, 3 * 9, c, r}, in_samples(3, 9, 4));
  product("of the weight, bf16", {41, 37, 21, c, r, true, true}, in_samples(3, 7, 4));
  product("of the weight, many samples", {24, 16, 37 * 8, c, r}, in_samples(37, 8, 3));
  product("of the weight, chains", {70, 102, 600, c, r}, in_leaves(600, 256));
  product("three leaves", {150, 96, 384, r, c}, in_leaves(384, 128));
  product("eight leaves", {150, 96, 384, r, c}, in_leaves(384, 48));
  product("a leaf a number", {5, 7, 19, r, c}, in_leaves(19, 1));
}

}  // namespace check
