// What a product adds: numbers of two packed panels one by one, as they are or rounded to bf16; or pairs of such, for
// an instruction that adds two products at once. Compiled once for each instruction set.
//
// A pair lies in the place of one fp32 number: its first number in the upper half, its second in the lower one. Where a
// leaf has no other it is +0 in one panel and -0 in the other: to add -0 changes no sum. AVX512_BF16's instruction is
// two fused multiply-adds, that of the upper halves first, but it takes denormals for zero, operands and results. So it
// adds panels alone in which there can be none.
#pragma once

#include "vector.h"

namespace ditto_exact::DITTO_EXACT_NS {

typedef std::uint32_t U __attribute__((vector_size(4 * W)));

constexpr Index kLine = 16;  // numbers of a cache line

inline U words(std::uint32_t x) { return (U)set(static_cast<std::int32_t>(x)); }

// To the nearest bf16, of two the even one; denormals are kept.
inline V to_bf16(V x) {
  const U bits = (U)x, up = bits + words(0x7FFF) + (bits >> words(16) & words(1));
  const U none = (U)((bits & words(0x7FFFFFFF)) > words(0x7F800000));
  return (V)(((up & ~none) | (none & words(0x7FC00000))) & words(0xFFFF0000));
}

inline void round_to_bf16(float* x, Index n) {
  each(n, [&](Index i, Index left) { some(x + i, to_bf16(some(x + i, left)), left); });
}

// The exponents of numbers that are not zero, in their place; of zeros the largest there is.
inline I exponents(V x) {
  const U size = (U)x & words(0x7FFFFFFF), zero = (U)(size == words(0));
  return (I)((size | zero) & words(0x7F800000));
}

// A panel's numbers [K][wide] to pairs of each leaf, in their place, and behind them, in the line that is free there,
// the least exponent of those that are not zero. `rest` is the second one of a pair that has no other. A row that fills
// half a vector or more, but no whole one, is stored over the next row, which has been read.
inline void pair_up(float* panel, int wide, const Order& order, std::uint32_t rest) {
  const Index K = order.leaf_count > 0 ? order.leaves[order.leaf_count - 1].end : 0;
  for (Index i = 0; i < kLine; ++i) panel[K * wide + i] = 0;
  I least_of = (I)words(0x7F800000);
  const auto rounded = [&](const float* p) {
    const V x = to_bf16(load(p));
    const I e = exponents(x);
    least_of = e < least_of ? e : least_of;
    return (U)x;
  };
  float *from = panel, *to = panel;
  Index k = 0;
  for (Index leaf = 0; leaf < order.leaf_count; ++leaf)
    for (const Index end = order.leaves[leaf].end; k < end; to += wide) {
      const bool alone = k + 1 == end;
      for (Index i = 0; i < wide; i += W) {
        const U first = rounded(from + i);
        if (alone)
          some(to + i, (V)(first | words(rest)), wide - i);
        else
          store(to + i, (V)(first | rounded(from + wide + i) >> words(16)));
      }
      const int taken = alone ? 1 : 2;
      k += taken, from += taken * wide;
    }
  std::int32_t smallest = 0x7F800000;
  for (int i = 0; i < W; ++i) smallest = least_of[i] < smallest ? least_of[i] : smallest;
  panel[K * wide] = static_cast<float>(smallest >> 23);
}

// Each gives a tile the terms of an order's sums. Where they do not fit two panels, `Otherwise` does.
struct OneByOne {
  static constexpr int kAtOnce = 1;
  using Otherwise = OneByOne;
  static constexpr bool fits(const float*, const float*) { return true; }
  static V add(V a, V b, V sum) { return fma(a, b, sum); }
};
struct PairsInTurn {
  static constexpr int kAtOnce = 2;
  using Otherwise = PairsInTurn;
  static constexpr bool fits(const float*, const float*) { return true; }
  static V add(V a, V b, V sum) {
    const auto upper = [](V x) { return (V)((U)x & words(0xFFFF0000)); };
    const auto lower = [](V x) { return (V)((U)x << words(16)); };
    return fma(lower(a), lower(b), fma(upper(a), upper(b), sum));
  }
};
// A number of exponent e is a multiple of 2^(e - 134), so all that is added of two panels' numbers, and the sums, are
// multiples of 2^(a + b - 268), for the least exponents a and b: no denormal where that is 2^-126 or more. Denormals
// have e = 0.
template <class Instruction>
struct Pairs {
  static constexpr int kAtOnce = 2;
  using Otherwise = PairsInTurn;
  static bool fits(const float* a, const float* b) { return *a >= 1 && *b >= 1 && *a + *b >= 268 - 126; }
  static V add(V a, V b, V sum) { return Instruction::add(a, b, sum); }
};

}  // namespace ditto_exact::DITTO_EXACT_NS
