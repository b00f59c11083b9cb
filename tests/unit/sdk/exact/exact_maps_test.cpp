// Claim (one number): Layers over maps compute by nodes of their channels' leaves, as a tensor cut has them, and have
// the bits of the whole layer: outputs and every gradient.
#include <doctest/doctest.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/nn/maps.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

Context context() {
  Context ctx(std::make_shared<OpTable>(rows(), std::map<std::string, GivenOption>(), nullptr, std::vector<Op>(),
                                        /*exact=*/true),
              Random(1));
  ctx.token_leaf = 8;
  return ctx;
}

// Of three leaves a node of two and one of one, on one rank.
std::shared_ptr<const CutLayer::Nodes> two_nodes() {
  CutLayer::Nodes nodes;
  nodes.leaves = {2, 1};
  nodes.copies = [](const Tensor& x) -> Tensors { return {x.view_as(x), x.view_as(x)}; };
  nodes.sum = [](const Tensors& terms) { return terms.at(0) + terms.at(1); };
  return std::make_shared<const CutLayer::Nodes>(nodes);
}

template <class L>
Tensors with_gradients(L& layer, const Tensor& x) {
  auto ctx = context();
  const auto map = x.clone().requires_grad_();
  for (auto* parameter : {&layer.weight, &layer.bias}) parameter->leaf().mutable_grad() = Tensor();
  const auto y = layer.forward(map, ctx);
  y.backward(grad_of(y));
  return {y.detach(), map.grad(), layer.weight.leaf().grad(), layer.bias.leaf().grad()};
}

template <class L>
void check(L& layer, const Tensor& x) {
  {
    const torch::NoGradGuard no_grad;
    layer.weight.leaf().copy_(numbers(layer.weight.leaf().sizes().vec(), 2));
    layer.bias.leaf().copy_(numbers(layer.bias.leaf().sizes().vec(), 3));
  }
  REQUIRE(layer.leaves_to_cut() == 3);
  const auto whole = with_gradients(layer, x);
  layer.nodes = two_nodes();
  const auto by_nodes = with_gradients(layer, x);
  for (size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(by_nodes[i], whole[i]));
  }
}

TEST_CASE("convolutions by nodes of their inputs, and of their outputs, are the whole ones") {
  const auto x = numbers({3, 12, 6, 7}, 1);
  Conv2d sums({12, 5}, Split::rows().in_units(4)), cut({12, 9}, Split::columns({9}).in_units(3)),
      in_parts({12, 18, {3}, {2}}, Split::columns({6, 12}).in_units(2));
  check(sums, x);
  check(cut, x);
  check(in_parts, x);
}

TEST_CASE("so are transposed ones") {
  const auto x = numbers({3, 12, 4, 5}, 1);
  ConvTransposed2d sums({12, 5, {4}, {2}, {1}}, Split::rows().in_units(4)),
      cut({12, 9, {4}, {2}, {1}}, Split::columns({9}).in_units(3));
  check(sums, x);
  check(cut, x);
}

TEST_CASE("a kernel larger than its map makes no map, but an error") {
  auto ctx = context();
  Conv2d layer({.in = 3, .out = 4, .kernel = {5}, .padding = {0}});
  CHECK_THROWS_WITH_AS(layer.forward(numbers({2, 3, 3, 3}, 1), ctx), doctest::Contains("makes no place of"), Error);
}

TEST_CASE("convolutions of one leaf, and norms, which no rank has part of") {
  CHECK(Conv2d({12, 5}).leaves_to_cut() == 1);
  CHECK(GroupNorm(4, 12, Split::along({12})).leaves_to_cut() == 0);
}

TEST_CASE("under one a norm with what follows has the bits of the two, and maps of other sides an exact form") {
  auto ctx = context();
  const auto x = numbers({2, 12, 6, 4}, 1), shift = numbers({2, 12}, 2), scale = numbers({2, 12}, 3);
  const torch::NoGradGuard no_grad;
  GroupNorm norm(4, 12);
  norm.weight.leaf().copy_(numbers({12}, 4)), norm.bias.leaf().copy_(numbers({12}, 5));
  const auto plain = norm.forward(x, ctx);
  const auto spread = [](const Tensor& rows) { return rows.view({2, 12, 1, 1}); };
  CHECK(
      same_bits(norm.forward(x, ctx, {shift, scale, true}), ctx.ops.silu(plain * (1 + spread(scale)) + spread(shift))));
  CHECK(same_bits(add_channels(x, shift, ctx), x + spread(shift)));
  CHECK(same_bits(upsampled(x, ctx), x.repeat_interleave(2, 2).repeat_interleave(2, 3)));
  CHECK(same_bits(downsampled(upsampled(x, ctx), ctx), x));
  CHECK((bicubic(x, ctx, {3, 8}).sizes() == at::IntArrayRef({2, 12, 3, 8})));
}

}  // namespace
}  // namespace ditto::exact
