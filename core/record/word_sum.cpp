#include "core/record/word_sum.h"

#include <algorithm>

namespace ditto {

namespace {

constexpr std::size_t kCacheLine = 16, kRun = 64, kAhead = 512;  // words

using Factors = std::array<std::array<std::uint32_t, kHashBlock>, kHashLanes>;

constexpr Factors make_factors() {
  Factors factors{};
  for (std::size_t lane = 0; lane < kHashLanes; ++lane)
    for (std::size_t place = 0; place < kHashBlock; ++place)
      factors[lane][place] = static_cast<std::uint32_t>(splitmix64(lane, place) >> 32);
  return factors;
}

constexpr Factors kFactors = make_factors();

}  // namespace

// Factors of 32 bits: a product of two of them is exact, so that a changed word always changes its own product. What is
// summed comes from memory, once: asked for ahead, it comes half as fast again.
void add_words(const std::uint32_t* words, std::size_t first, std::size_t count,
               std::array<std::uint64_t, kHashLanes>& sums) {
  const std::uint32_t *factors = kFactors[0].data() + first, *others = kFactors[1].data() + first;
  std::uint64_t sum = 0, other = 0;
  for (std::size_t begin = 0; begin < count; begin += kRun) {
    const std::size_t end = std::min(begin + kRun, count);
    for (std::size_t line = 0; line < kRun; line += kCacheLine) __builtin_prefetch(words + begin + kAhead + line);
    for (std::size_t i = begin; i < end; ++i) {
      sum += std::uint64_t{words[i]} * factors[i];
      other += std::uint64_t{words[i]} * others[i];
    }
  }
  sums[0] += sum;
  sums[1] += other;
}

}  // namespace ditto
