// Which sample stands at which place of a run: a shuffled order that is computed, never stored.
#pragma once

#include <cstdint>

namespace ditto {

enum class Shuffle { on, off };

// Places 0, 1, 2, … run through all samples once an epoch: place p is in epoch p / n. Shuffled, every epoch has an
// order of its own, a pseudo-random permutation of [0, n) from (seed, epoch): a Feistel network of Philox rounds on the
// next even number of bits, walked along its cycle until it lands below n (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002). Any place costs the same, so that a resume anywhere and any rank's share need no history.
class Order {
 public:
  // n from 1 to 2^40.
  Order(std::int64_t n, std::uint64_t seed, Shuffle shuffle);

  std::int64_t samples() const { return n_; }
  std::int64_t epoch(std::int64_t place) const { return place / n_; }
  std::int64_t index(std::int64_t place) const;  // of the sample, in [0, n); place >= 0

 private:
  std::uint64_t permute(std::uint64_t value, std::uint64_t epoch) const;

  std::int64_t n_;
  std::uint64_t seed_;
  Shuffle shuffle_;
  unsigned half_bits_;
};

}  // namespace ditto
