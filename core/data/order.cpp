#include "core/data/order.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include <ditto/random.h>

namespace ditto {

namespace {

constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;
constexpr unsigned kRounds = 6;
constexpr unsigned kLeastHalfBits = 4;  // a network over fewer bits reaches too few permutations

}  // namespace

Order::Order(std::int64_t n, std::uint64_t seed, Shuffle shuffle) : n_(n), seed_(seed), shuffle_(shuffle) {
  if (n < 1 || n > kMostSamples) throw std::logic_error("Order: n must be 1 … 2^40, is " + std::to_string(n));
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  half_bits_ = std::max(kLeastHalfBits, (bits + 1) / 2);
}

std::int64_t Order::index(std::int64_t place) const {
  if (place < 0) throw std::logic_error("Order: place " + std::to_string(place) + " is below 0");
  const std::int64_t within = place % n_;
  if (shuffle_ == Shuffle::off) return within;
  auto value = static_cast<std::uint64_t>(within);
  do {
    value = permute(value, static_cast<std::uint64_t>(epoch(place)));
  } while (value >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(value);
}

std::uint64_t Order::permute(std::uint64_t value, std::uint64_t epoch) const {
  const std::uint32_t mask = (1u << half_bits_) - 1;
  auto left = static_cast<std::uint32_t>(value >> half_bits_), right = static_cast<std::uint32_t>(value) & mask;
  const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)};
  for (unsigned round = 0; round < kRounds; ++round) {
    const auto bits = philox({right, round | static_cast<std::uint32_t>(Purpose::order) << 16,
                              static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
                             key);
    const std::uint32_t mixed = left ^ (bits[0] & mask);
    left = right;
    right = mixed;
  }
  return static_cast<std::uint64_t>(left) << half_bits_ | right;
}

}  // namespace ditto
