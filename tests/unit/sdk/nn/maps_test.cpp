// Layers that change a map's sides, and rows added to channels, against torch's functions in double precision with
// every gradient; and what they refuse.
//
// Claim (numbers): Transposed convolutions and bicubic resampling of any sides are LibTorch's to 1e-12 in fp64, with
// their gradients.
#include <limits>

#include <doctest/doctest.h>

#include <limits>

#include <ditto/error.h>
#include <ditto/nn/maps.h>

#include "tests/unit/sdk/nn/layer_check.h"

namespace ditto::maps_test {
namespace {

using layer_check::check;
using layer_check::fill;
using layer_check::input;
using layer_check::Values;
using testing::small_context;
using torch::Tensor;

TEST_CASE("transposed convolutions are torch's, with stride, padding and sides of their own") {
  ConvTransposed2d plain({3, 5});
  check(plain, input({2, 3, 6, 7}), [](const Tensor& x, Values& p) {
    return torch::conv_transpose2d(x, p["weight"], p["bias"], {1, 1}, {1, 1});
  });
  ConvTransposed2d twice({4, 6, {4}, {2}, {1}});
  check(twice, input({2, 4, 5, 3}), [](const Tensor& x, Values& p) {
    return torch::conv_transpose2d(x, p["weight"], p["bias"], {2, 2}, {1, 1});
  });
  ConvTransposed2d of_one({4, 6, {4}, {2}, {1}});
  check(of_one, input({2, 4, 1, 1}), [](const Tensor& x, Values& p) {
    return torch::conv_transpose2d(x, p["weight"], p["bias"], {2, 2}, {1, 1});
  });
  ConvTransposed2d apart({2, 3, {2, 3}, {3, 2}, {0, 1}});  // some rows have nothing but the bias
  check(apart, input({1, 2, 4, 5}), [](const Tensor& x, Values& p) {
    return torch::conv_transpose2d(x, p["weight"], p["bias"], {3, 2}, {0, 1});
  });
}

TEST_CASE("a transposed convolution makes the sides that a convolution of its shape makes the former of") {
  const auto ctx = small_context(torch::kDouble);
  const ConvShape up{6, 4, {4}, {2}, {1}}, down{4, 6, {4}, {2}, {1}};
  ConvTransposed2d twice(up);
  Conv2d half(down);
  fill(twice), fill(half);
  const auto map = input({1, 6, 5, 8}), large = twice.forward(map, *ctx);
  CHECK((large.sizes() == at::IntArrayRef({1, 4, 10, 16})));
  CHECK((half.forward(large, *ctx).sizes() == map.sizes()));
  // And is its transpose: <conv(y), x> = <y, transposed(x)> without biases.
  {
    const torch::NoGradGuard no_grad;
    twice.bias.leaf().zero_(), half.bias.leaf().zero_();
    half.weight.leaf().copy_(twice.weight.leaf());
  }
  const auto y = testing::numbers({1, 4, 10, 16}, 5, torch::kDouble).tanh();
  const double a = (half.forward(y, *ctx) * map).sum().item<double>(),
               b = (y * twice.forward(map, *ctx)).sum().item<double>();
  CHECK(a == doctest::Approx(b).epsilon(1e-12));
}

TEST_CASE("a transposed convolution is cut by its weight's channels: of columns the second dim, of rows the first") {
  const ConvTransposed2d columns({4, 6, {4}, {2}, {1}}, Split::columns({6}).in_units(2)),
      rows({4, 6, {4}, {2}, {1}}, Split::rows()), whole({4, 6, {4}, {2}, {1}});
  CHECK(whole.cut(Axis::tensor) == nullptr);
  const auto dims = [](const LayerCut& cut) {
    std::vector<std::string> list;
    for (const auto& one : cut.parameters)
      list.push_back(one.parameter + " " + std::to_string(one.dim) + " by " + std::to_string(one.unit));
    return list;
  };
  CHECK(dims(*columns.cut(Axis::tensor)) == std::vector<std::string>{"weight 1 by 2", "bias 0 by 2"});
  CHECK((columns.cut(Axis::tensor)->output == LayerCut::Values::cut));
  CHECK(dims(*rows.cut(Axis::tensor)) == std::vector<std::string>{"weight 0 by 1"});
  CHECK((rows.cut(Axis::tensor)->output == LayerCut::Values::partial));
}

// A function of a map and its gradient, against another one's.
void check_map(const Tensor& in, const std::function<Tensor(const Tensor& map)>& found,
               const std::function<Tensor(const Tensor& map)>& expected) {
  const Tensor a = in.clone().requires_grad_(), b = in.clone().requires_grad_(), y = found(a), y2 = expected(b);
  REQUIRE((y.sizes() == y2.sizes()));
  CHECK(torch::allclose(y, y2, 1e-12, 1e-12));
  const auto weights = testing::numbers(y.sizes(), 11, torch::kDouble);
  (y * weights).sum().backward();
  (y2 * weights).sum().backward();
  CHECK(b.grad().abs().max().item<double>() > 0);
  CHECK(torch::allclose(a.grad(), b.grad(), 1e-12, 1e-12));
}

TEST_CASE("an up-sampled map has each place several times, and its gradient is their sum") {
  const auto ctx = small_context(torch::kDouble);
  for (const auto& times : std::vector<std::vector<int64_t>>{{2}, {2, 2}, {4, 1}, {1, 3}}) {
    const int64_t rows = times[0], columns = times.back();
    check_map(
        input({2, 3, 4, 5}), [&](const Tensor& map) { return upsampled(map, *ctx, times); },
        [&](const Tensor& map) { return map.repeat_interleave(rows, 2).repeat_interleave(columns, 3); });
  }
  CHECK((upsampled(input({1, 2, 3}), *ctx).sizes() == at::IntArrayRef({1, 2, 6})));
  CHECK((upsampled(input({1, 2, 3, 4, 5}), *ctx, {1, 2, 2}).sizes() == at::IntArrayRef({1, 2, 3, 8, 10})));
  CHECK_THROWS_WITH_AS(upsampled(input({1, 2, 3, 4}), *ctx, {2, 2, 2}),
                       doctest::Contains("up-sampling of 2 sides: has a factor of 2 2 2"), Error);
  CHECK_THROWS_WITH_AS(upsampled(input({1, 2, 3}), *ctx, {0}), doctest::Contains("up-sampling of 1 side"), Error);
  CHECK_THROWS_WITH_AS(upsampled(input({2, 3}), *ctx), doctest::Contains("give it maps"), Error);
}

TEST_CASE("a down-sampled map has the means of its places, whose gradient each of them shares") {
  const auto ctx = small_context(torch::kDouble);
  for (const auto& times : std::vector<std::vector<int64_t>>{{2}, {3, 1}, {6, 4}})
    check_map(
        input({2, 3, 6, 12}), [&](const Tensor& map) { return downsampled(map, *ctx, times); },
        [&](const Tensor& map) {
          return torch::avg_pool2d(map, {times[0], times.back()});
        });
  CHECK((downsampled(input({1, 2, 3, 4, 6}), *ctx, {1, 2, 3}).sizes() == at::IntArrayRef({1, 2, 3, 2, 2})));
  CHECK_THROWS_WITH_AS(downsampled(input({1, 2, 4, 5}), *ctx),
                       doctest::Contains("down-sampling of 2 sides: is given [1, 2, 4, 5], with factors of 2 2; give "
                                         "it maps whose sides the factors divide"),
                       Error);
  CHECK_THROWS_WITH_AS(downsampled(input({1, 2, 4, 4}), *ctx, {2, -2}), doctest::Contains("expected at least 1"),
                       Error);
}

TEST_CASE("bicubic resampling is torch's, larger, smaller, by odd factors, of one place") {
  const auto ctx = small_context(torch::kDouble);
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> sizes{
      {{8, 8}, {32, 32}}, {{16, 12}, {4, 3}}, {{5, 7}, {9, 4}}, {{7, 5}, {21, 13}},
      {{1, 1}, {3, 2}},   {{2, 3}, {1, 1}},   {{6, 4}, {6, 4}}, {{64, 3}, {3, 64}}};
  for (const auto& [from, to] : sizes) {
    CAPTURE(from);
    CAPTURE(to);
    check_map(
        input({2, 3, from[0], from[1]}), [&](const Tensor& map) { return bicubic(map, *ctx, to); },
        [&](const Tensor& map) { return torch::upsample_bicubic2d(map, to, /*align_corners=*/false); });
  }
  // Others are other functions: what a planted fault would be.
  const auto map = input({1, 1, 6, 6});
  CHECK(!torch::allclose(bicubic(map, *ctx, {9, 9}), torch::upsample_bicubic2d(map, {9, 9}, true), 1e-3, 1e-3));
  CHECK(!torch::allclose(bicubic(map, *ctx, {3, 3}), torch::_upsample_bicubic2d_aa(map, {3, 3}, false), 1e-3, 1e-3));
}

TEST_CASE("in bf16 bicubic sums are in fp32, and rounded once") {
  const auto ctx = small_context(torch::kBFloat16);
  const auto map = input({1, 2, 5, 6}).to(torch::kBFloat16);
  CHECK(torch::equal(bicubic(map, *ctx, {11, 4}), bicubic(map.to(torch::kFloat), *ctx, {11, 4}).to(torch::kBFloat16)));
}

TEST_CASE("an infinite gradient of bicubic resampling stays where its weights are") {
  const auto ctx = small_context(torch::kDouble);
  for (const auto& sides : std::vector<std::vector<int64_t>>{{9, 11}, {16, 16}, {2, 2}}) {
    const auto map = torch::zeros({1, 1, 16, 16}, torch::kDouble).requires_grad_();
    auto grad = torch::ones({1, 1, sides[0], sides[1]}, torch::kDouble);
    grad[0][0][0][0] = std::numeric_limits<double>::infinity();
    bicubic(map, *ctx, sides).backward(grad);
    CHECK(!map.grad().isfinite().all().item<bool>());
    CHECK(map.grad().slice(2, 8).isfinite().all().item<bool>());
    CHECK(map.grad().slice(3, 8).isfinite().all().item<bool>());
  }
}

TEST_CASE("what bicubic resampling cannot do is refused") {
  const auto ctx = small_context(torch::kDouble);
  const auto refused = [&](const Tensor& map, const std::vector<int64_t>& sides) {
    CHECK_THROWS_WITH_AS(bicubic(map, *ctx, sides), doctest::Contains("bicubic resampling: is given ["), Error);
  };
  refused(input({1, 2, 3}), {6});
  refused(input({1, 2, 3, 4, 5}), {6, 6, 6});
  refused(input({1, 2, 3, 4}), {6});
  refused(input({1, 2, 3, 4}), {6, 0});
  refused(torch::zeros({1, 2, 0, 4}), {6, 6});
}

TEST_CASE("a number for each channel is added at all of its places") {
  const auto ctx = small_context(torch::kDouble);
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 3, 4, 5}, {2, 3, 7}, {1, 4, 1, 1}, {2, 3, 2, 3, 2}}) {
    const std::vector<int64_t> of_rows{sizes[0], sizes[1]};
    std::vector<int64_t> wide = of_rows;
    wide.resize(sizes.size(), 1);
    const Tensor rows = testing::numbers(of_rows, 4, torch::kDouble), other = rows.clone();
    rows.requires_grad_(), other.requires_grad_();
    check_map(
        input(sizes), [&](const Tensor& map) { return add_channels(map, rows, *ctx); },
        [&](const Tensor& map) { return map + other.view(wide); });
    CHECK(torch::allclose(rows.grad(), other.grad(), 1e-12, 1e-12));
  }
  CHECK_THROWS_WITH_AS(add_channels(input({2, 3, 4, 5}), input({2, 4}), *ctx),
                       doctest::Contains("adding to channels: is given rows [2, 4] for a map [2, 3, 4, 5]"), Error);
  CHECK_THROWS_WITH_AS(add_channels(input({2, 3, 4, 5}), input({1, 3}), *ctx), doctest::Contains("give it [B, C]"),
                       Error);
}

TEST_CASE("shapes that a transposed convolution cannot have are refused") {
  CHECK_THROWS_WITH_AS(ConvTransposed2d({3, 6, {3}, {0}}), doctest::Contains("transposed convolution: has a stride of"),
                       Error);
  CHECK_THROWS_AS(ConvTransposed2d({3, 6, {3}, {1}, {-1}}), Error);
  CHECK_THROWS_AS(ConvTransposed2d({3, 6, {3}, {1}, {1}, {2}}), Error);
  CHECK_THROWS_AS(ConvTransposed2d({3, 6, {3, 3, 3}}), Error);
  CHECK_THROWS_AS(ConvTransposed2d({0, 6}), Error);
  CHECK_THROWS_AS(ConvTransposed2d({3, 6}, Split::along({6})), Error);
  CHECK_THROWS_AS(ConvTransposed2d({3, 6}, Split::columns({2, 2})), Error);
  const auto ctx = small_context(torch::kDouble);
  ConvTransposed2d layer({3, 6, {2}, {2}, {1}});
  fill(layer);
  CHECK_THROWS_WITH_AS(layer.forward(input({2, 4, 5, 5}), *ctx), doctest::Contains("is given [2, 4, 5, 5]"), Error);
  CHECK_THROWS_WITH_AS(layer.forward(input({2, 3, 1, 5}), *ctx), doctest::Contains("makes no place of [2, 3, 1, 5]"),
                       Error);
  CHECK((layer.forward(input({2, 3, 2, 5}), *ctx).sizes() == at::IntArrayRef({2, 6, 2, 8})));
}

TEST_CASE("a convolution refuses maps that are smaller than its kernel, with their padding") {
  const auto ctx = small_context(torch::kDouble);
  Conv2d layer({.in = 3, .out = 6, .kernel = {5}, .padding = {0}, .padding_after = {1}});
  fill(layer);
  CHECK_THROWS_WITH_AS(layer.forward(input({2, 3, 4, 3}), *ctx),
                       doctest::Contains("makes no place of [2, 3, 4, 3], with a kernel of [5, 5]"), Error);
  CHECK((layer.forward(input({2, 3, 4, 4}), *ctx).sizes() == at::IntArrayRef({2, 6, 1, 1})));
}

TEST_CASE("a gradient that is not finite stays where bicubic resampling has what it is of") {
  const auto ctx = small_context(torch::kDouble);
  for (const std::vector<int64_t>& sides : {std::vector<int64_t>{9, 21}, {3, 4}}) {
    const Tensor map = input({1, 2, 7, 12}).requires_grad_();
    const Tensor y = bicubic(map, *ctx, sides);
    Tensor grad = torch::ones_like(y);
    grad.select(2, 0).select(2, 0).fill_(std::numeric_limits<double>::infinity());
    y.backward(grad);
    CHECK(!map.grad().slice(2, 0, 3).slice(3, 0, 3).isfinite().all().item<bool>());
    CHECK(map.grad().slice(2, 5).isfinite().all().item<bool>());
    CHECK(map.grad().slice(3, 8).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace ditto::maps_test
