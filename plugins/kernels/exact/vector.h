// One vector type for each instruction set. A function here is one IEEE operation a lane (fp32, to nearest, denormals
// kept), so that neither width nor instruction set shows in a bit. Compiled with -ffp-contract=off: the only fused
// multiply-adds are those written `fma`.
//
// This header and the others that are compiled once for each instruction set (DITTO_EXACT_NS) call nothing inline of
// the standard library: a linker keeps one copy of such a function, which might be the one that this processor cannot
// run.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels.h"

namespace ditto_exact::DITTO_EXACT_NS {

#if defined(DITTO_EXACT_AVX512)
constexpr int W = 16;
#elif defined(DITTO_EXACT_AVX2)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float V __attribute__((vector_size(4 * W)));
typedef std::int32_t I __attribute__((vector_size(4 * W)));

inline V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

#if defined(DITTO_EXACT_AVX512)
inline V set(float x) { return (V)_mm512_set1_ps(x); }
inline I set(std::int32_t x) { return (I)_mm512_set1_epi32(x); }
inline V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline V root(V a) { return (V)_mm512_sqrt_ps((__m512)a); }
#elif defined(DITTO_EXACT_AVX2)
inline V set(float x) { return (V)_mm256_set1_ps(x); }
inline I set(std::int32_t x) { return (I)_mm256_set1_epi32(x); }
inline V fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline V root(V a) { return (V)_mm256_sqrt_ps((__m256)a); }
#elif defined(DITTO_EXACT_NEON)
inline V set(float x) { return (V)vdupq_n_f32(x); }
inline I set(std::int32_t x) { return (I)vdupq_n_s32(x); }
inline V fma(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
inline V root(V a) { return (V)vsqrtq_f32((float32x4_t)a); }
#else
inline V set(float x) { return V{x, x, x, x}; }
inline I set(std::int32_t x) { return I{x, x, x, x}; }
// The product is exact in fp64; the sum is rounded there to odd, so that its rounding to fp32 is the only one (S. Boldo
// and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
inline V fma(V a, V b, V c) {
  typedef double D __attribute__((vector_size(32)));
  typedef std::int64_t L __attribute__((vector_size(32)));
  const D p = __builtin_convertvector(a, D) * __builtin_convertvector(b, D), q = __builtin_convertvector(c, D);
  const D s = p + q, t = s - p, rest = (p - (s - t)) + (q - t);
  const L inexact = (rest < 0) | (rest > 0), even = ((L)s & 1) - 1;  // a rest that is no number: s is none, or infinite
  const L away = (((rest < 0) ^ (s < 0)) | 1);                       // one unit towards the exact sum
  return __builtin_convertvector((D)((L)s + (inexact & even & away)), V);
}
inline V root(V a) {
  V r;
  for (int i = 0; i < W; ++i) r[i] = __builtin_sqrtf(a[i]);
  return r;
}
#endif
inline V larger(V a, V b) { return a > b ? a : b; }  // not maxps or fmax: these treat -0 and nan in ways of their own

constexpr float kInfinity = __builtin_inff();
constexpr float kTaylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

// e^x: 2^n e^f with f = x - n ln 2, |f| <= 0.35, by its Taylor polynomial of degree 7. Below -87: 0; above 88:
// infinity. e^0 is 1.
inline V exp(V x) {
  const V magic = set(12582912.0f);
  const V t = fma(x, set(1.44269504f), magic), n = t - magic;
  V f = fma(n, set(-0.693145751953125f), x);
  f = fma(n, set(-1.42860677e-06f), f);
  V p = set(1.0f / 5040);
#pragma GCC unroll 7
  for (int i = 0; i < 7; ++i) p = fma(p, f, set(kTaylor[i]));
  const V r = (V)((I)p + ((I)t << 23));
  return x < set(-87.0f) ? V{} : (x <= set(88.0f) ? r : x * set(kInfinity));  // what is no number stays none
}

// A rest that fills no vector goes through the same vector code.
inline V some(const float* p, Index left) {
  if (left >= W) return load(p);
  alignas(64) float pad[W] = {};
  for (Index i = 0; i < left; ++i) pad[i] = p[i];
  return load(pad);
}
inline void some(float* p, V v, Index left) {
  if (left >= W) return store(p, v);
  alignas(64) float pad[W];
  store(pad, v);
  for (Index i = 0; i < left; ++i) p[i] = pad[i];
}
template <class F>
inline void each(Index n, F f) {
  Index i = 0;
  for (; i + W <= n; i += W) f(i, W);
  if (i < n) f(i, n - i);
}

// Sums of rows have sixteen lanes on every machine; lane i takes numbers i, i + 16, … in order, and the lanes are added
// as a tree: 8 and 8, 4 and 4, 2 and 2, 1 and 1.
struct Lanes {
  V v[16 / W];
};
inline Lanes lanes() {
  Lanes l;
  for (auto& v : l.v) v = V{};
  return l;
}
inline Lanes load16(const float* p, Index left) {  // +0 where nothing is there
  alignas(64) float pad[16] = {};
  if (left < 16) {
    for (Index i = 0; i < left; ++i) pad[i] = p[i];
    p = pad;
  }
  Lanes l;
  for (int j = 0; j < 16 / W; ++j) l.v[j] = load(p + j * W);
  return l;
}
inline float tree16(const Lanes& l) {
  alignas(64) float x[16];
  for (int j = 0; j < 16 / W; ++j) store(x + j * W, l.v[j]);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  return x[0];
}

// N x N numbers turned about their diagonal: log2 N rounds of exchanges between rows `Apart` apart.
template <class T, class M, int N, int Apart>
inline void turn(T* r) {
  M low, high;
  for (int l = 0; l < N; ++l) {
    const bool left = (l & Apart) == 0;
    low[l] = left ? l : N + (l ^ Apart), high[l] = left ? (l ^ Apart) : N + l;
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i)
    if ((i & Apart) == 0) {
      const T a = r[i], b = r[i + Apart];
#if defined(__clang__)
      for (int l = 0; l < N; ++l) r[i][l] = low[l] < N ? a[low[l]] : b[low[l] - N];
      for (int l = 0; l < N; ++l) r[i + Apart][l] = high[l] < N ? a[high[l]] : b[high[l] - N];
#else
      r[i] = __builtin_shuffle(a, b, low), r[i + Apart] = __builtin_shuffle(a, b, high);
#endif
    }
  if constexpr (Apart > 1) turn<T, M, N, Apart / 2>(r);
}

}  // namespace ditto_exact::DITTO_EXACT_NS
