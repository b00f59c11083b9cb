// What the two files that are compiled for AVX-512 with its instruction for pairs of bf16 numbers have in common, for
// them alone. In an anonymous namespace: a linker keeps one copy of any other inline function, for all processors.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ditto_cpu {

namespace {

using Index = std::int64_t;
using Word = std::uint32_t;
using V = __m512;

constexpr int W = 16;

inline Index least(Index a, Index b) { return a < b ? a : b; }
// The first `count` of a vector's numbers; all of them from W on.
inline __mmask16 mask_of(Index count) {
  return static_cast<__mmask16>(count >= W ? 0xFFFF : count > 0 ? (1u << count) - 1 : 0);
}
inline V load16(const std::uint16_t* from, __mmask16 some) {
  return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16);
}
// sum + the products of a pair of numbers with 16 pairs, in fp32.
inline V pairs(V sum, Word a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
}

// 2^f for f within a half of 0, to fp32's last bits or two.
inline V exp2_of_fraction(V f) {
  V p = _mm512_set1_ps(1.33335581e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return p;
}

// 16 x 16 words turned about their diagonal.
inline void turn(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xDD);
    r[4 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xDD);
  }
}

}  // namespace

}  // namespace ditto_cpu
