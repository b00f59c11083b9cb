// One update of an optimizer: its parts in their order, and the copies that layers compute with.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/optimizer.h>

#include "core/assembly/ema.h"

using ditto::OptimizedParameter;
using torch::Tensor;

namespace {

ditto::Context bf16() {
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(0));
  ctx.compute = at::kBFloat16;
  return ctx;
}

}  // namespace

TEST_CASE("gradients are scaled before the weights move, and average and copies follow the moved weights") {
  const Tensor weight = torch::arange(6, at::kFloat).requires_grad_();
  weight.mutable_grad() = torch::ones({6});
  const std::vector<OptimizedParameter> parameters{{"w", weight, {6}}};
  const Tensor average = torch::zeros({6}), copy = torch::zeros({6}, at::kBFloat16);
  ditto::in_parts({.lr = 0.5, .clip = 0.25, .average = {average}, .decay = 0.75, .copies = {copy}}, parameters,
                  [&] { weight.detach().sub_(weight.grad() * 0.5); });
  const Tensor moved = torch::arange(6, at::kFloat) - 0.125;
  CHECK(weight.detach().equal(moved));
  CHECK(average.equal(torch::zeros({6}).lerp(moved, 0.25)));
  CHECK(copy.equal(moved.to(at::kBFloat16)));
}

TEST_CASE("a copy that an update has written is used as it is, and one that it has not is made again") {
  const ditto::Parameter parameter(torch::arange(6, at::kFloat).requires_grad_(), ditto::Init::zeros());
  auto ctx = bf16();
  CHECK_FALSE(parameter.copy().defined());
  torch::NoGradGuard no_grad;
  parameter(ctx);
  const Tensor copy = parameter.copy();
  REQUIRE(copy.defined());
  parameter.leaf().detach().add_(1);
  ditto::follow({.copies = {copy}}, {{"w", parameter.leaf(), {6}}});
  parameter.copied();
  CHECK(parameter(ctx).is_same(copy));
  CHECK(copy.equal((torch::arange(6, at::kFloat) + 1).to(at::kBFloat16)));
  parameter.leaf().detach().add_(1);
  CHECK(parameter(ctx).equal((torch::arange(6, at::kFloat) + 2).to(at::kBFloat16)));
  CHECK_FALSE(parameter(ctx).is_same(copy));
}

TEST_CASE("where a strategy provides the numbers, an update has no copy to write") {
  const ditto::Parameter parameter(torch::arange(6, at::kFloat).requires_grad_(), ditto::Init::zeros());
  auto ctx = bf16();
  torch::NoGradGuard no_grad;
  parameter.provide(torch::ones({6}));
  parameter(ctx);
  CHECK_FALSE(parameter.copy().defined());
}

TEST_CASE("a moving average that warms up weighs its first updates as (1 + n) / (10 + n), up to its decay") {
  ditto::Layout layout;
  ditto::EmaOptions options;
  options.enabled = true;
  options.decay = 0.9;
  for (const bool warmup : {false, true}) {
    options.warmup = warmup;
    const ditto::Ema average(layout, options);
    CHECK(average.decay(1) == doctest::Approx(warmup ? 2.0 / 11 : 0.9));
    CHECK(average.decay(10) == doctest::Approx(warmup ? 11.0 / 20 : 0.9));
    CHECK(average.decay(1000) == 0.9);
  }
}
