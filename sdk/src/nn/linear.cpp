// The linear layer, and the leaves of its sums.
#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn/linear.h>

#include "nn/nodes_of_dim.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kRun = 32;     // numbers of a leaf at most, where no unit says how many
constexpr int64_t kShares = 12;  // so many ranks, or fewer, can share the leaves

// Runs of single numbers, of which all parts have as many.
int64_t runs_of_numbers(const std::vector<int64_t>& parts, int64_t common) {
  const int64_t least = (common + kRun - 1) / kRun;
  for (int64_t runs = kShares; common % kShares == 0 && runs <= common; runs += kShares)
    if (runs >= least && common % runs == 0) return runs;
  int64_t runs = std::max<int64_t>(*std::min_element(parts.begin(), parts.end()) / kRun, 1);
  while (common % runs != 0) --runs;
  return runs;
}

// {U, w0, w1, …} of the op "linear"; none where there would be one leaf.
std::vector<int64_t> leaves_of(std::vector<int64_t> parts, int64_t dim, int64_t unit) {
  if (parts.empty()) parts = {dim};
  std::erase(parts, 0);
  int64_t runs = 0;  // what makes no sense is refused where the layer declares its cut
  for (const int64_t part : parts) runs = std::gcd(runs, part / std::max<int64_t>(unit, 1));
  if (unit == 1 && !parts.empty()) runs = runs_of_numbers(parts, runs);
  if (runs <= 1) return {};
  parts.insert(parts.begin(), runs);
  return parts;
}

}  // namespace

SumLeaves SumLeaves::of(const Split& split, int64_t in, int64_t out) {
  if (split.kind == Split::Kind::rows) return {leaves_of(split.parts, in, split.unit), {}};
  if (split.kind == Split::Kind::columns) return {{}, leaves_of(split.parts, out, split.unit)};
  return {};
}

LinearModule::LinearModule(Shape shape, Split split_)
    : split(std::move(split_)), leaves(SumLeaves::of(split, shape.in, shape.out)) {
  weight = parameter("weight", {shape.out, shape.in}, shape.weight);
  if (shape.bias) bias = parameter("bias", {shape.out}, *shape.bias);
  declare(split, {"linear layer", "inputs", "outputs"});
}

LinearModule::~LinearModule() = default;

std::optional<int64_t> LinearModule::leaves_to_cut() const {
  return leaves_that_are_cut(leaves, split.kind == Split::Kind::rows);
}

Tensor LinearModule::bias_of(Context& ctx) const { return bias.defined() ? bias(ctx) : Tensor(); }

Tensor LinearModule::forward(const Tensor& x, Context& ctx) {
  if (nodes) return split.kind == Split::Kind::rows ? by_rows(x, ctx) : by_columns(x, ctx);
  const Tensor in = enter(x).to(ctx.compute);
  ctx.count("linear", 2 * static_cast<double>(in.numel()) * static_cast<double>(weight.leaf().size(0)));
  const bool adds_later = after && bias.defined() && split.kind == Split::Kind::rows;
  const Ops ops = split.condition ? ctx.ops.of_condition() : ctx.ops.of(split.sequence);
  Tensor y = ops.linear(in, weight(ctx), adds_later ? Tensor() : bias_of(ctx), leaves);
  if (term) y = y + (*term)(in, ctx);
  return adds_later ? ops.add_row(after(y), bias(ctx)) : leave(y);
}

// What is added once comes after the sum, in the order in which the op adds it.
Tensor LinearModule::by_rows(const Tensor& x, Context& ctx) {
  const NodesOfDim dim(leaves.in, nodes->leaves);
  const auto between = split.condition ? ctx.ops.of_condition() : ctx.ops.of(split.sequence);
  const auto inside = split.condition ? between : between.inside();
  const Tensor in = enter(x).to(ctx.compute);
  const auto xs = dim.split(in, -1);
  const auto sum_with = [&](const Parameter& map) {
    ctx.count("linear", 2 * static_cast<double>(in.numel()) * static_cast<double>(map.leaf().size(0)));
    const auto maps = dim.split(map(ctx), 1);
    std::vector<Tensor> terms;
    for (size_t i = 0; i < xs.size(); ++i) terms.push_back(inside.linear(xs[i], maps[i], {}, {dim.leaves(i), {}}));
    return nodes->sum(terms);
  };
  Tensor y = sum_with(weight);
  if (bias.defined()) y = between.add_row(y, bias(ctx));
  if (term) y = y + between.linear(sum_with(term->a) * term->scale, term->b(ctx), {});
  return y;
}

Tensor LinearModule::by_columns(const Tensor& x, Context& ctx) {
  const NodesOfDim dim(leaves.out, nodes->leaves);
  const auto between = split.condition ? ctx.ops.of_condition() : ctx.ops.of(split.sequence);
  const auto inside = split.condition ? between : between.inside();
  const Tensor in = x.to(ctx.compute);
  const auto outputs = [&](const Tensor& whole, const Tensor& map, const Tensor& row) {
    const auto xs = nodes->copies(whole), maps = dim.split(map, 0);
    const auto rows = row.defined() ? dim.split(row, 0) : std::vector<Tensor>(xs.size());
    ctx.count("linear", 2 * static_cast<double>(xs[0].numel()) * static_cast<double>(map.size(0)));
    std::vector<Tensor> ys;
    for (size_t i = 0; i < xs.size(); ++i) ys.push_back(inside.linear(xs[i], maps[i], rows[i], {{}, dim.leaves(i)}));
    return dim.join(ys, -1);
  };
  Tensor y = outputs(in, weight(ctx), bias_of(ctx));
  if (term) y = y + outputs(between.linear(in, term->a(ctx), {}) * term->scale, term->b(ctx), {});
  return after ? after(y) : y;
}

}  // namespace ditto
