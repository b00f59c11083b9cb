#include "core/data/order.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include <ditto/math/random.h>

namespace ditto {

namespace {

constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;
constexpr unsigned kRounds = 6;
constexpr unsigned kLeastHalfBits = 4;  // a network over fewer bits reaches too few permutations

using Wide = __int128;  // a place times a share

// Apart from the whole's and the other parts', so that parts of one size are not in step.
std::uint64_t seed_of_part(std::uint64_t seed, std::size_t part) {
  const auto word = [](std::uint64_t value, int shift) { return static_cast<std::uint32_t>(value >> shift); };
  const auto bits =
      philox({static_cast<std::uint32_t>(part), 0xFFFF | static_cast<std::uint32_t>(Purpose::order) << 16, 0, 0},
             {word(seed, 0), word(seed, 32)});
  return std::uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace

Order::Order(std::int64_t n, std::uint64_t seed, Shuffle shuffle) : Order(Ordered{n}, seed, shuffle) {}

Order::Order(const Ordered& what, std::uint64_t seed, Shuffle shuffle)
    : n_(what.samples), seed_(seed), shuffle_(shuffle) {
  if (n_ < 1 || n_ > kMostSamples) throw std::logic_error("Order: n must be 1 … 2^40, is " + std::to_string(n_));
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(n_ - 1)));
  half_bits_ = std::max(kLeastHalfBits, (bits + 1) / 2);
  std::int64_t samples = 0;
  for (const auto& part : what.parts) {
    if (part.share < 1) throw std::logic_error("Order: a part's share is " + std::to_string(part.share));
    parts_.emplace_back(part, seed_of_part(seed, parts_.size()), shuffle);
    shares_.push_back(part.share);
    samples += part.samples;
  }
  if (!parts_.empty() && samples != n_) throw std::logic_error("Order: its parts have another number of samples");
}

std::int64_t Order::index(std::int64_t place) const {
  if (place < 0) throw std::logic_error("Order: place " + std::to_string(place) + " is below 0");
  if (!parts_.empty()) return turn(place);
  const std::int64_t within = place % n_;
  if (shuffle_ == Shuffle::off) return within;
  auto value = static_cast<std::uint64_t>(within);
  do {
    value = permute(value, static_cast<std::uint64_t>(place / n_));
  } while (value >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(value);
}

std::int64_t Order::turn(std::int64_t place) const {
  Wide left = 0;
  for (const std::int64_t share : shares_) left += share;
  std::int64_t before = 0;  // samples of the parts that had no turn
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const auto had = static_cast<std::int64_t>(place * Wide(shares_[k]) / left);
    const auto has = static_cast<std::int64_t>((place + Wide(1)) * shares_[k] / left);
    if (has > had) return before + parts_[k].index(had);
    place -= had;
    left -= shares_[k];
    before += parts_[k].samples();
  }
  throw std::logic_error("Order: no part has a turn");
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
