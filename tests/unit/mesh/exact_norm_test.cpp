// Claim (one number): The sum of squares without rounding: any order, any split, any size of numbers.
#include "core/mesh/exact_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>

#include <ATen/Parallel.h>

#include "core/mesh/gradient_sum.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

double root_of(const std::vector<float>& numbers) {
  SquareSum sum;
  sum.add(numbers.data(), static_cast<int64_t>(numbers.size()));
  return sum.root();
}

long double long_root_of(std::vector<float> numbers) {
  std::sort(numbers.begin(), numbers.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  long double sum = 0;
  for (const float x : numbers) sum += static_cast<long double>(x) * x;
  return std::sqrt(sum);
}

// Of every exponent, denormals too.
std::vector<float> any_numbers(size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers;
  while (numbers.size() < count) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(x)) numbers.push_back(x);
  }
  return numbers;
}

std::vector<float> some_numbers(size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i)
    numbers.push_back(
        std::ldexp(static_cast<float>(random()) / 4294967296.0F - 0.5F, static_cast<int>(random() % 40) - 30));
  return numbers;
}

TEST_CASE("the sum of squares has one value in any order and any split, near the one in long doubles") {
  for (const auto& given : {any_numbers(5000, 1), some_numbers(5000, 2)}) {
    auto numbers = given;
    const double whole = root_of(numbers);
    CHECK(whole == doctest::Approx(static_cast<double>(long_root_of(numbers))).epsilon(1e-15));
    std::mt19937 random(3);
    for (int i = 0; i < 20; ++i) {
      std::shuffle(numbers.begin(), numbers.end(), random);
      CHECK(root_of(numbers) == whole);
      SquareSum first, second;
      const auto cut = static_cast<int64_t>(random() % numbers.size());
      first.add(numbers.data(), cut);
      second.add(numbers.data() + cut, static_cast<int64_t>(numbers.size()) - cut);
      const auto sent = first.numbers();
      SquareSum received;
      received.set(sent.data());
      second.add(received);
      CHECK(second.root() == whole);
    }
  }
}

TEST_CASE("squares are exact: of denormals, of the largest numbers, of one number alone") {
  const float least = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  CHECK(root_of({}) == 0);
  CHECK(root_of({0.0F, -0.0F}) == 0);
  for (const float x : {least, -least, 3 * least, std::numeric_limits<float>::min(), 1.0F, -1.5F, most, -most})
    CHECK(root_of({x}) == std::abs(static_cast<double>(x)));
  CHECK(root_of({3, 4}) == 5);
  CHECK(root_of(std::vector<float>(1 << 20, most)) == 1024 * static_cast<double>(most));
  CHECK(root_of(std::vector<float>(1 << 20, least)) == 1024 * static_cast<double>(least));
  // What is lost in an fp64 sum from the large one on is not lost here.
  std::vector<float> numbers{1 << 20};
  numbers.resize(1 + (1 << 16), std::ldexp(1.0F, -8));  // 2^16 of 2^-16: 1 in all
  const double expected = std::sqrt(std::ldexp(1.0, 40) + 1);
  CHECK(root_of(numbers) == expected);
  std::swap(numbers.front(), numbers.back());
  CHECK(root_of(numbers) == expected);
}

TEST_CASE("a number that is not finite makes the root so") {
  const float infinite = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(root_of({1, -infinite}) == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(root_of({1, nan})));
  CHECK(std::isnan(root_of({infinite, nan})));
}

Layout layout_of(const std::vector<torch::Tensor>& gradients) {
  Layout layout;
  for (const auto& gradient : gradients) {
    auto leaf = torch::zeros_like(gradient).requires_grad_();
    leaf.mutable_grad() = gradient;
    layout.entries.push_back(
        {"p" + std::to_string(layout.entries.size()), leaf, gradient.sizes().vec(), Unit{Unit::head, -1}});
  }
  return layout;
}

TEST_CASE("the exact norm depends on no number of threads, and is near the fast one") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(1));
  const auto layout =
      layout_of({testing::numbers({700, 901}, 1), testing::numbers({3}, 2), testing::numbers({64, 5}, 3).t()});
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);
  const double norm = grad_norm(layout, mesh, true);
  for (const int count : {2, 3, 7}) {
    torch::set_num_threads(count);
    CHECK(grad_norm(layout, mesh, true) == norm);
  }
  torch::set_num_threads(threads);
  CHECK(norm == static_cast<double>(static_cast<float>(norm)));
  CHECK(norm == doctest::Approx(grad_norm(layout, mesh)).epsilon(1e-7));
}

// Rank r of n holds rows of one tensor, and a copy of another.
TEST_CASE("rank of: exact norm of shards" * doctest::skip()) {
  const int count = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::shard, count}});
  const auto cut = testing::numbers({97, 31}, 4), copy = testing::numbers({12}, 5);
  const int r = mesh.index(Axis::shard);
  auto layout = layout_of({cut.slice(0, 97 * r / count, 97 * (r + 1) / count).contiguous(), copy});
  layout.entries[0].cuts[Axis::shard] = {0, {97}, r, count};
  const GlooMesh alone(RankInfo{}, {}, std::chrono::seconds(1));
  CHECK(grad_norm(layout, mesh, true) == grad_norm(layout_of({cut, copy}), alone, true));
}

TEST_CASE("shards have the norm of the whole to the last bit, copies counted once") {
  for (const int ranks : {1, 2, 3}) CHECK(testing::as_ranks(ranks, "rank of: exact norm of shards") == 0);
}

}  // namespace
}  // namespace ditto
