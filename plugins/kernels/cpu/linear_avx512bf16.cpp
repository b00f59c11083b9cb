// Compiled for AVX-512 with its instruction for pairs of bf16 numbers, and called where the processor has it. Calls
// nothing inline of the standard library: a linker keeps one copy of such a function.
#include "linear.h"

#if defined(__x86_64__)
#include "pairs_avx512bf16.h"

namespace ditto_cpu {

namespace {

inline void store16(std::uint16_t* to, __mmask16 some, __m256i numbers) { _mm256_mask_storeu_epi16(to, some, numbers); }
inline V wide(__m256i numbers) { return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16); }

// tile [R, kPanel] = sum over P pairs of words a[i * a_row + p * a_step] and vectors of b's panel.
template <int R>
inline void tile(const Word* a, Index a_row, Index a_step, const Word* b, Index P, float* c) {
  V sum[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (Index p = 0; p < P; ++p, a += a_step, b += kPanel) {
    const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + W);
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      sum[i][0] = pairs(sum[i][0], a[i * a_row], left);
      sum[i][1] = pairs(sum[i][1], a[i * a_row], right);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) {
    _mm512_store_ps(c + i * kPanel, sum[i][0]);
    _mm512_store_ps(c + i * kPanel + W, sum[i][1]);
  }
}

// Of fewer rows, in steps of 4, 2 and 1.
void tiles(Index rows, const Word* a, Index a_row, Index a_step, const Word* b, Index P, float* c) {
  if (rows == kTile) return tile<kTile>(a, a_row, a_step, b, P, c);
  const auto step = [&](Index by) { rows -= by, a += by * a_row, c += by * kPanel; };
  for (; rows >= 4; step(4)) tile<4>(a, a_row, a_step, b, P, c);
  for (; rows >= 2; step(2)) tile<2>(a, a_row, a_step, b, P, c);
  if (rows) tile<1>(a, a_row, a_step, b, P, c);
}

// 1 / (1 + 2^-x).
inline V sigmoid2(V x) {
  const V y = _mm512_max_ps(_mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), _mm512_set1_ps(126.0f)),
                            _mm512_set1_ps(-126.0f));
  const V n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(y, n);
  const V p = exp2_of_fraction(f);
  const V d = _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p, n)), r = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, _mm512_set1_ps(2.0f)));
}

// GELU is x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3); here in powers of two.
constexpr float kScale = 2.302208198f, kCube = 0.044715f;  // 2 sqrt(2 / pi) / ln 2
inline V inner(V x) {
  const V square = _mm512_mul_ps(x, x);
  return _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(kScale), x),
                       _mm512_fmadd_ps(_mm512_set1_ps(kCube), square, _mm512_set1_ps(1.0f)));
}
// A number that is none stays none: min and max above would lose it.
inline V gelu(V x) { return _mm512_mul_ps(x, sigmoid2(inner(x))); }
inline V gelu_slope(V x) {
  const V s = sigmoid2(inner(x)), square = _mm512_mul_ps(x, x);
  const V rise = _mm512_mul_ps(_mm512_set1_ps(kScale * 0.6931471806f),
                               _mm512_fmadd_ps(_mm512_set1_ps(3 * kCube), square, _mm512_set1_ps(1.0f)));
  return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(x, s), _mm512_sub_ps(_mm512_set1_ps(1.0f), s)), rise, s);
}

}  // namespace

void pack_for_outputs(const std::uint16_t* w_NK, Index N, Index K, Index panel, Word* words) {
  const Index P = K / 2;
  Word* const to = words + panel * P * kPanel;
  for (Index half = 0; half < kPanel; half += W)
    for (Index p = 0; p < P; p += W) {
      const __mmask16 some = mask_of(P - p);
      __m512i r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        const Index n = panel * kPanel + half + i;
        r[i] = n < N ? _mm512_maskz_loadu_epi32(some, reinterpret_cast<const Word*>(w_NK + n * K) + p)
                     : _mm512_setzero_si512();
      }
      turn(r);
      const Index here = least(W, P - p);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        if (i < here) _mm512_storeu_si512(to + (p + i) * kPanel + half, r[i]);
    }
}

// Few rows at a time: those of a wide tensor are asked for at the same places of the first cache.
void pack_rows(const std::uint16_t* x, Index rows, Index columns, Index width, Index block, Word* words) {
  const Index P = (rows + 1) / 2, last = least(P, (block + 1) * kPairs);
  for (Index begin = block * kPairs; begin < last; begin += kPairs / 4)
    for (Index column = 0; column < columns; column += width) {
      Word* const to = words + column * P;  // whole panels before it
      for (Index k = 0; k < width; k += W) {
        const __mmask16 some = mask_of(least(width, columns - column) - k), whole = mask_of(width - k);
        for (Index p = begin; p < least(last, begin + kPairs / 4); ++p) {
          const std::uint16_t* const row = x + 2 * p * columns + column + k;
          const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row));
          const __m512i high = 2 * p + 1 < rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row + columns))
                                                : _mm512_setzero_si512();
          _mm512_mask_storeu_epi32(to + p * width + k, whole, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
      }
    }
}

void multiply(const RowProduct& product, Index row, Index panel) {
  alignas(64) float c[kTile * kPanel];
  const Index last_row = least(product.M, row + kRows), count = panels(product.N, kPanel);
  const Index last_panel = least(count, panel + kPanels);
  for (Index j = panel; j < last_panel; ++j) {
    const Word* const factor = product.factor + j * product.pairs * kPanel;
    for (Index i = row; i < last_row; i += kTile) {
      const Index rows = least(kTile, last_row - i);
      tiles(rows, reinterpret_cast<const Word*>(product.a) + i * product.pairs, product.pairs, 1, factor, product.pairs,
            c);
      for (Index half = 0; half < kPanel; half += W) {
        const Index n = j * kPanel + half;
        const __mmask16 some = mask_of(product.N - n);
        if (!some) break;
        const V bias = product.bias ? load16(product.bias + n, some) : _mm512_setzero_ps();
        for (Index r = 0; r < rows; ++r) {
          const V sum = _mm512_add_ps(_mm512_load_ps(c + r * kPanel + half), bias);
          const auto rounded = (__m256i)_mm512_cvtneps_pbh(sum);
          store16(product.c + (i + r) * product.N + n, some, rounded);
          if (product.gelu)
            store16(product.gelu + (i + r) * product.N + n, some, (__m256i)_mm512_cvtneps_pbh(gelu(wide(rounded))));
        }
      }
    }
  }
}

void multiply(const PairProduct& product, Index row, Index panel) {
  alignas(64) float c[kTile * kPanel];
  const Index last_row = least(product.N, row + kRows);
  const Word* const b = product.b + panel * product.pairs * kPanel;
  for (Index i = row; i < last_row; i += kTile) {
    const Index rows = least(kTile, last_row - i);
    tiles(rows, product.a + i * product.pairs, 1, kTile, b, product.pairs, c);
    for (Index half = 0; half < kPanel; half += W) {
      const Index k = panel * kPanel + half;
      const __mmask16 some = mask_of(product.K - k);
      for (Index r = 0; r < rows; ++r)
        _mm512_mask_storeu_ps(product.c + (i + r) * product.K + k, some, _mm512_load_ps(c + r * kPanel + half));
    }
  }
}

// Row by row, as they lie in memory: it is read ahead so.
void gradient_rows(const std::uint16_t* grad, const std::uint16_t* h, std::uint16_t* dh, Index M, Index N, Index block,
                   float* sums_N) {
  const Index begin = 2 * kPairs * block, end = least(M, begin + 2 * kPairs);
  for (Index n = 0; n < N; n += W) _mm512_mask_storeu_ps(sums_N + n, mask_of(N - n), _mm512_setzero_ps());
  for (Index m = begin; m < end; ++m)
    for (Index n = 0; n < N; n += W) {
      const Index at = m * N + n;
      const __mmask16 some = mask_of(N - n);
      V g = load16(grad + at, some);
      if (h) {
        const auto rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(g, gelu_slope(load16(h + at, some))));
        store16(dh + at, some, rounded);
        g = wide(rounded);
      }
      _mm512_mask_storeu_ps(sums_N + n, some, _mm512_add_ps(_mm512_maskz_loadu_ps(some, sums_N + n), g));
    }
}

}  // namespace ditto_cpu
#endif
