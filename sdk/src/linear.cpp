// The linear layer, and the leaves of its sums.
#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kRun = 32;  // numbers of a leaf, where no unit says how many

// {U, w0, w1, …} of the op "linear"; none where there would be one leaf.
std::vector<int64_t> leaves_of(std::vector<int64_t> parts, int64_t dim, int64_t unit) {
  if (parts.empty()) parts = {dim};
  std::erase(parts, 0);
  int64_t runs = 0;  // what makes no sense is refused where the layer declares its cut
  for (const int64_t part : parts) runs = std::gcd(runs, part / std::max<int64_t>(unit, 1));
  if (unit == 1 && !parts.empty()) {
    const int64_t most = *std::min_element(parts.begin(), parts.end()) / kRun, common = runs;
    for (runs = std::max<int64_t>(most, 1); common % runs != 0; --runs) continue;
  }
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
  bias = parameter("bias", {shape.out}, shape.bias);
  declare(split, {"linear layer", "inputs", "outputs"});
}

LinearModule::~LinearModule() = default;

Tensor LinearModule::forward(const Tensor& x, Context& ctx) {
  const Tensor in = enter(x).to(ctx.compute);
  ctx.count("linear", 2 * static_cast<double>(in.numel()) * static_cast<double>(weight.leaf().size(0)));
  const bool adds_later = after && split.kind == Split::Kind::rows;
  Tensor y = ctx.ops.linear(in, weight(ctx), adds_later ? Tensor() : bias(ctx), leaves);
  if (term) y = y + (*term)(in, ctx);
  return adds_later ? ctx.ops.add_row(after(y), bias(ctx)) : leave(y);
}

}  // namespace ditto
