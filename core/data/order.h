// Which sample stands at which place of a run: a shuffled order that is computed, never stored.
#pragma once

#include <cstdint>
#include <vector>

namespace ditto {

enum class Shuffle { on, off };

// What an order runs through: so many samples; or parts that take turns, whose samples are numbered one part after
// another.
struct Ordered {
  std::int64_t samples = 0;      // from 1 to 2^40
  std::vector<Ordered> parts{};  // empty: samples; else `samples` is their sum
  // Of one among a blend's parts: its share of the places is share / (sum of all shares), at least 1.
  std::int64_t share = 1;
};

// Places 0, 1, 2, … run through all samples once an epoch: place p is in epoch p / n. Shuffled, every epoch has an
// order of its own, a pseudo-random permutation of [0, n) from (seed, epoch): a Feistel network of Philox rounds on the
// next even number of bits, walked along its cycle until it lands below n (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002). Any place costs the same, so that a resume anywhere and any rank's share need no history.
//
// Parts of shares s_0, s_1, … take turns: of the places below p the first part has floor(p s_0 / S), and those that are
// left are shared out among the others alike. So every stretch of places holds the shares within a sample a part, and
// each part runs through its own samples in its own order and epochs, whatever the others do.
class Order {
 public:
  Order(std::int64_t n, std::uint64_t seed, Shuffle shuffle);
  Order(const Ordered& what, std::uint64_t seed, Shuffle shuffle);

  std::int64_t samples() const { return n_; }
  std::int64_t epoch(std::int64_t place) const { return place / n_; }
  std::int64_t index(std::int64_t place) const;  // of the sample, in [0, n); place >= 0

 private:
  std::int64_t turn(std::int64_t place) const;  // of parts
  std::uint64_t permute(std::uint64_t value, std::uint64_t epoch) const;

  std::int64_t n_;
  std::uint64_t seed_;
  Shuffle shuffle_;
  unsigned half_bits_ = 0;
  std::vector<Order> parts_;
  std::vector<std::int64_t> shares_;
};

}  // namespace ditto
