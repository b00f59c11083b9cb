// Residual blocks of UNets, and what they leave out while they train.
//
// Claim (layouts): What is left out of a map depends on seed, sample, name and the place in all of its channels alone,
// whatever share of them a rank has.
#include <ditto/nn/unet.h>

#include <doctest/doctest.h>
#include <torch/types.h>

#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using Sides = ResidualShape::Sides;
using test::contains;
using test::error_of;
using testing::small_context;
using torch::Tensor;

Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, torch::kDouble);
}

std::shared_ptr<MapResidual> filled(const ResidualShape& shape) {
  const torch::NoGradGuard no_grad;
  auto made = std::make_shared<MapResidual>(shape);
  made->to(torch::kDouble);
  uint64_t seed = 1;
  for (auto& item : made->named_parameters()) item.value().copy_(drawn(item.value().sizes(), ++seed) * 0.3);
  return made;
}

// The same by LibTorch's functions, without what is left out.
Tensor plain(MapResidual& block, const ResidualShape& s, const Tensor& x, const Tensor& cond_BD) {
  const auto p = block.named_parameters();
  const auto norm = [&](const std::string& name, const Tensor& map) {
    return torch::group_norm(map, s.groups, p[name + ".weight"], p[name + ".bias"], s.eps);
  };
  const auto conv = [&](const std::string& name, const Tensor& map) {
    const auto& weight = p[name + ".weight"];
    return torch::conv2d(map, weight, p[name + ".bias"], 1, weight.size(-1) / 2);
  };
  const auto resized = [&](const std::string& name, const Tensor& map) {
    if (s.sides == Sides::halved) return torch::avg_pool2d(map, 2);
    return s.sides == Sides::doubled
               ? torch::conv_transpose2d(map, p[name + ".weight"], p[name + ".bias"], /*stride=*/2, /*padding=*/1)
               : map;
  };
  auto h = conv("conv1", resized("twice", torch::silu(norm("norm1", x))));
  const auto rows = torch::linear(cond_BD, p["cond.weight"], p["cond.bias"]).unsqueeze(-1).unsqueeze(-1);
  if (s.scale_shift) {
    const auto parts = rows.chunk(2, 1);
    h = norm("norm2", h) * (1 + parts[0]) + parts[1];
  } else {
    h = norm("norm2", h + rows);
  }
  const auto by = resized("past_twice", x);
  return (p.contains("past.weight") ? conv("past", by) : by) * s.past + conv("conv2", torch::silu(h));
}

}  // namespace

TEST_CASE("a residual block of every form is what its definition says") {
  const auto ctx = small_context(torch::kDouble);
  const auto x = drawn({2, 8, 6, 4}, 50), cond_BD = drawn({2, 5}, 51);
  for (const int64_t out : {8, 12})
    for (const bool scale_shift : {false, true})
      for (const auto sides : {Sides::same, Sides::halved, Sides::doubled})
        for (const bool always : {false, true}) {
          ResidualShape shape{8, out, 5};
          shape.groups = 4, shape.scale_shift = scale_shift, shape.sides = sides, shape.always_maps = always;
          shape.past = always ? 0.75 : 1;
          const auto block = filled(shape);
          CAPTURE(out);
          CAPTURE(scale_shift);
          CAPTURE(static_cast<int>(sides));
          CHECK(block->named_parameters().contains("past.weight") == (always || out != 8));
          CHECK(torch::allclose(block->forward(x, cond_BD, *ctx), plain(*block, shape, x, cond_BD), 1e-10, 1e-10));
        }
}

TEST_CASE("the last convolution begins as zeros, where it is told to") {
  ResidualShape shape{8, 8, 5};
  shape.groups = 4;
  const auto of = [&] {
    for (const auto& one : MapResidual(shape).named_children())
      if (one.key() == "conv2") return std::dynamic_pointer_cast<Conv2d>(one.value())->weight.init().kind;
    return Init::Kind::ones;
  };
  CHECK(of() == Init::Kind::zeros);
  shape.zero = false;
  CHECK(of() == Init::Kind::uniform);
}

TEST_CASE("what is left out of a map is the same, whatever share of its channels is here") {
  const auto ctx = small_context(torch::kDouble);
  const auto map = torch::ones({2, 12, 5, 3}, torch::kDouble);
  const std::vector<int64_t> ids{7, 8};
  const auto drop = [&](const Tensor& of, const std::vector<int64_t>& samples, const char* name = "a") {
    return ctx->dropout(of, 0.25, samples, name);
  };
  const auto whole = drop(map, ids);
  for (const int64_t count : {2, 3})
    for (int64_t index = 0; index < count; ++index) {
      const int64_t here = 12 / count;
      const auto part = ctx->dropout(map.narrow(1, index * here, here), 0.25, ids, "a", ShareHere{index, count});
      CHECK(part.equal(whole.narrow(1, index * here, here)));
    }
  CHECK(drop(map.slice(0, 1), {8}).equal(whole.slice(0, 1)));
  CHECK(!drop(map, ids, "b").equal(whole));
  CHECK(!whole[0].equal(whole[1]));
  const auto many = drop(torch::ones({1, 40, 20, 25}, torch::kDouble), {3});
  CHECK(many.ne(0).to(torch::kDouble).mean().item<double>() == doctest::Approx(0.75).epsilon(0.02));
  CHECK(many.mean().item<double>() == doctest::Approx(1).epsilon(0.02));
  CHECK(contains(error_of(ErrorKind::shape, [&] { drop(map, {7}); }), "1 sample ids for 2 samples"));
  CHECK(contains(error_of(ErrorKind::shape, [&] { ctx->dropout(map, 1, ids, "a"); }), "below 1"));
}

TEST_CASE("a residual block leaves out numbers while it trains, and none else") {
  const auto ctx = small_context(torch::kDouble);
  ResidualShape shape{8, 8, 5};
  shape.groups = 4, shape.dropout = 0.5, shape.name = "a";
  const auto block = filled(shape);
  const auto x = drawn({2, 8, 6, 4}, 50), cond_BD = drawn({2, 5}, 51);
  const auto trained = block->forward(x, cond_BD, *ctx, {1, 2});
  CHECK(trained.equal(block->forward(x, cond_BD, *ctx, {1, 2})));
  CHECK(!trained.equal(block->forward(x, cond_BD, *ctx, {1, 3})));
  ctx->phase = Phase::evaluate;
  CHECK(torch::allclose(block->forward(x, cond_BD, *ctx), plain(*block, shape, x, cond_BD), 1e-10, 1e-10));
}

}  // namespace ditto
