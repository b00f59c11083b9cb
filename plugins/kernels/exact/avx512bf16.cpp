// Products of numbers that are rounded to bf16, by the instruction for pairs of them.
#if defined(__x86_64__)
#define DITTO_EXACT_AVX512
#define DITTO_EXACT_NS avx512bf16
#include "convolution.h"

namespace ditto_exact {

namespace avx512bf16 {

struct Instruction {
  static V add(V a, V b, V sum) { return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
};

// The next number of a fixed series (G. Marsaglia, "Xorshift RNGs", 2003).
inline std::uint32_t draw(std::uint32_t& state) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state;
}

// bf16 in the upper half: of either sign, an exponent within `spread` of that of 1.
inline std::uint32_t number(std::uint32_t& state, std::uint32_t spread) {
  const std::uint32_t exponent = 127 - spread + draw(state) % (2 * spread + 1), bits = draw(state);
  return (bits & 0x807F0000) | exponent << 23;
}

// Chains of sums of which no term or sum can be a denormal: 200,000 pairs, in a few milliseconds.
inline bool adds_in_turn() {
  std::uint32_t state = 2463534242;
  constexpr std::uint32_t kSpreads[] = {1, 4, 20, 55};
  for (const std::uint32_t spread : kSpreads)
    for (int chain = 0; chain < 256; ++chain) {
      V found{}, expected{};
      for (int pair = 0; pair < 12; ++pair) {
        U a, b;
        for (int i = 0; i < W; ++i) {
          a[i] = number(state, spread) | number(state, spread) >> 16;
          b[i] = number(state, spread) | number(state, spread) >> 16;
        }
        found = Instruction::add((V)a, (V)b, found), expected = PairsInTurn::add((V)a, (V)b, expected);
        if (__builtin_memcmp(&found, &expected, sizeof found) != 0) return false;
      }
    }
  return true;
}

}  // namespace avx512bf16

void product_by_pairs(const Product& p, const Workers& workers) {
  avx512bf16::product_of<avx512bf16::Pairs<avx512bf16::Instruction>>(p, workers);
}
void map_product_by_pairs(const MapProduct& p, const Workers& workers) {
  avx512bf16::map_product_of<avx512bf16::Pairs<avx512bf16::Instruction>>(p, workers);
}
void map_grad_by_pairs(const MapGrad& p, const Workers& workers) {
  avx512bf16::map_grad_of<avx512bf16::Pairs<avx512bf16::Instruction>>(p, workers);
}

bool pairs_are_exact() { return avx512bf16::adds_in_turn(); }

}  // namespace ditto_exact
#endif
