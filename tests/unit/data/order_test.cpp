// Claim (data): Every epoch visits every sample once, and any place of a run is found at once.

#include "core/data/order.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

using ditto::Order;
using ditto::Shuffle;

namespace {

std::vector<std::int64_t> epoch_of(const Order& order, std::int64_t epoch) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < order.samples(); ++i) out.push_back(order.index(epoch * order.samples() + i));
  return out;
}

}  // namespace

TEST_CASE("every epoch visits every sample once") {
  for (const std::int64_t n : {1, 2, 3, 5, 16, 17, 255, 256, 257, 1617, 4097}) {
    const Order order(n, 7, Shuffle::on);
    for (const std::int64_t epoch : {0, 1, 1000000}) {
      const auto visited = epoch_of(order, epoch);
      const std::set<std::int64_t> distinct(visited.begin(), visited.end());
      CHECK(static_cast<std::int64_t>(distinct.size()) == n);
      CHECK(*distinct.begin() == 0);
      CHECK(*distinct.rbegin() == n - 1);
    }
  }
}

TEST_CASE("epochs and seeds have orders of their own, and equal ones have equal orders") {
  const Order order(100, 7, Shuffle::on);
  CHECK(epoch_of(order, 0) != epoch_of(order, 1));
  CHECK(epoch_of(order, 0) == epoch_of(Order(100, 7, Shuffle::on), 0));
  CHECK(epoch_of(order, 0) != epoch_of(Order(100, 8, Shuffle::on), 0));
  CHECK(epoch_of(order, 0) != epoch_of(Order(100, 7 + (std::uint64_t{1} << 32), Shuffle::on), 0));
}

TEST_CASE("without shuffling the order is the stored one in every epoch") {
  const Order order(10, 7, Shuffle::off);
  for (std::int64_t place = 0; place < 35; ++place) CHECK(order.index(place) == place % 10);
  CHECK(order.epoch(9) == 0);
  CHECK(order.epoch(10) == 1);
}

// Over many epochs each sample must stand at each place about equally often. The sum of squared deviations over what is
// expected has mean (n-1)^2 and variance 2 (n-1)^2 for uniform permutations (n-1 rows and columns are free).
TEST_CASE("each sample stands at each place about equally often") {
  for (const std::int64_t n : {2, 3, 7, 13}) {
    const Order order(n, 42, Shuffle::on);
    constexpr std::int64_t kEpochs = 3000;
    std::vector<double> count(static_cast<std::size_t>(n * n));
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch)
      for (std::int64_t i = 0; i < n; ++i) count[static_cast<std::size_t>(i * n + order.index(epoch * n + i))] += 1;
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(n);
    double chi = 0;
    for (const double c : count) chi += (c - expected) * (c - expected) / expected;
    const double free = static_cast<double>((n - 1) * (n - 1));
    CAPTURE(n);
    CAPTURE(chi);
    // The places of one permutation depend on each other, which scales the statistic by n / (n - 1).
    const double scale = static_cast<double>(n) / static_cast<double>(n - 1);
    CHECK(chi < scale * (free + 6 * std::sqrt(2 * free)));
    CHECK(chi > 0);
  }
}

TEST_CASE("all orders of three samples occur about equally often") {
  const Order order(3, 1, Shuffle::on);
  std::vector<int> count(27);
  for (std::int64_t epoch = 0; epoch < 6000; ++epoch) {
    const auto o = epoch_of(order, epoch);
    ++count[static_cast<std::size_t>(o[0] * 9 + o[1] * 3 + o[2])];
  }
  int orders = 0;
  for (const int c : count) {
    if (c == 0) continue;
    ++orders;
    CHECK(c > 800);
    CHECK(c < 1200);
  }
  CHECK(orders == 6);
}

TEST_CASE("neighbours are not kept together") {
  constexpr std::int64_t kSamples = 10000;
  const Order order(kSamples, 3, Shuffle::on);
  int neighbours = 0;
  for (std::int64_t i = 0; i + 1 < kSamples; ++i) neighbours += std::abs(order.index(i) - order.index(i + 1)) == 1;
  CHECK(neighbours < 15);  // expected: 2
}

TEST_CASE("a place far into a huge data set is found at once") {
  const std::int64_t n = std::int64_t{1} << 40;
  const Order order(n, 5, Shuffle::on);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const auto index = order.index(3 * n + 123456789 + i);
    CHECK(index >= 0);
    CHECK(index < n);
    seen.insert(index);
  }
  CHECK(seen.size() == 1000);
}

TEST_CASE("sizes and places that cannot be are refused") {
  CHECK_THROWS_AS(Order(0, 1, Shuffle::on), std::logic_error);
  CHECK_THROWS_AS(Order((std::int64_t{1} << 40) + 1, 1, Shuffle::on), std::logic_error);
  CHECK_THROWS_AS(Order(3, 1, Shuffle::on).index(-1), std::logic_error);
}
