// Compiled for AVX-512 with its instruction for pairs of bf16 numbers, and called where the processor has it. Calls
// nothing inline of the standard library: a linker keeps one copy of such a function.
#include "linear.h"

#if defined(__x86_64__)
#include "pairs_avx512bf16.h"

namespace ditto_cpu {

namespace {

constexpr Index kStep = 4;    // pairs of rows that are read beside one another
constexpr Index kAhead = 64;  // pairs

// Asks for a line, into the first cache or the second. There need not be memory at p.
inline void near(const Word* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
inline void ahead(const std::uint16_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

// Under a mask a store takes long, even of all numbers.
inline void store16(std::uint16_t* to, __mmask16 some, __m256i numbers) {
  if (some == 0xFFFF)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), numbers);
  else
    _mm256_mask_storeu_epi16(to, some, numbers);
}
inline V wide(__m256i numbers) { return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16); }

// tile [R, kPanel] = sum over P pairs of words a[i * a_row + p * a_step] and vectors of b's panel. `panels`: a is one
// too, and both are asked for long before they are needed, as they come from far.
template <int R, bool panels>
inline void tile(const Word* a, Index a_row, Index a_step, const Word* b, Index P, float* c) {
  V sum[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (Index p = 0; p < P; ++p, a += a_step, b += kPanel) {
    if (panels) {
      near(a + kAhead * a_step), near(a + kAhead * a_step + R - 1);
      near(b + kAhead * kPanel), near(b + kAhead * kPanel + W);
    }
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

// Of fewer rows, in steps of 8, 4, 2 and 1.
template <bool panels>
void tiles(Index rows, const Word* a, Index a_row, Index a_step, const Word* b, Index P, float* c) {
  if (rows == kTile) return tile<kTile, panels>(a, a_row, a_step, b, P, c);
  const auto step = [&](Index by) { rows -= by, a += by * a_row, c += by * kPanel; };
  for (; rows >= 8; step(8)) tile<8, panels>(a, a_row, a_step, b, P, c);
  for (; rows >= 4; step(4)) tile<4, panels>(a, a_row, a_step, b, P, c);
  for (; rows >= 2; step(2)) tile<2, panels>(a, a_row, a_step, b, P, c);
  if (rows) tile<1, panels>(a, a_row, a_step, b, P, c);
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
  Word* const to = words + panel * apart(P) * kPanel;
  for (Index half = 0; half < kPanel; half += W)
    for (Index p = 0; p < P; p += W) {
      const __mmask16 some = mask_of(P - p);
      __m512i r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        const Index n = panel * kPanel + half + i;
        ahead(w_NK + (n + W) * K + 2 * p);
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

// Few rows at a time: those of a wide tensor are asked for at the same places of the first cache. The processor by
// itself reads ahead along a row only, hence `ahead`.
void pack_rows(const ColumnsOfRows& of, Index block, Word* words) {
  const Index P = (of.rows + 1) / 2, last = least(P, (block + 1) * kPairs), next = of.apart;
  for (Index begin = block * kPairs; begin < last; begin += kStep)
    for (Index column = 0; column < of.columns; column += kPanel)
      for (Index k = 0; k < kPanel; k += W) {
        const __mmask16 some = mask_of(of.columns - column - k);
        for (Index p = begin; p < least(last, begin + kStep); ++p) {
          const std::uint16_t* const row = of.x + 2 * p * next + column + k;
          ahead(row + 2 * kStep * next);
          ahead(row + (2 * kStep + 1) * next);
          const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row));
          const __m512i high = 2 * p + 1 < of.rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row + next))
                                                   : _mm512_setzero_si512();
          _mm512_storeu_si512(words + column * apart(P) + p * kPanel + k,
                              _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
      }
}

void multiply(const RowProduct& product, Index row, Index panel) {
  alignas(64) float c[kTile * kPanel];
  const Index last_row = least(product.M, row + kRows), count = panels(product.N, kPanel);
  const Index last_panel = least(count, panel + kPanels);
  for (Index j = panel; j < last_panel; ++j) {
    const Word* const factor = product.factor + j * apart(product.pairs) * kPanel;
    for (Index i = row; i < last_row; i += kTile) {
      const Index rows = least(kTile, last_row - i);
      tiles<false>(rows, reinterpret_cast<const Word*>(product.a) + i * product.pairs, product.pairs, 1, factor,
                   product.pairs, c);
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
  const Index last_row = least(product.N, row + kRows), last_panel = least(panels(product.K, kPanel), panel + kPanels);
  for (Index j = panel; j < last_panel; ++j)
    for (Index i = row; i < last_row; i += kTile) {
      const Index rows = least(kTile, last_row - i);
      tiles<true>(rows, product.a + row * apart(product.pairs) + i - row, 1, kRows,
                  product.b + j * apart(product.pairs) * kPanel, product.pairs, c);
      for (Index half = 0; half < kPanel; half += W) {
        const Index k = j * kPanel + half;
        const __mmask16 some = mask_of(product.K - k);
        for (Index r = 0; r < rows; ++r)
          _mm512_mask_storeu_ps(product.c + (i + r) * product.apart + k, some, _mm512_load_ps(c + r * kPanel + half));
      }
    }
}

void gelu(const std::uint16_t* x, std::uint16_t* y, Index count) {
  for (Index i = 0; i < count; i += W) {
    const __mmask16 some = mask_of(count - i);
    store16(y + i, some, (__m256i)_mm512_cvtneps_pbh(gelu(load16(x + i, some))));
  }
}

namespace {

template <bool gelu>
void gradient_rows_of(const GradientRows& rows, Index block) {
  const std::uint16_t *const grad = rows.grad, *const h =
                                                   rows.h;  // by name: clang 14 lets no lambda have parts of a binding
  std::uint16_t* const dh = rows.dh;
  Word* const words = rows.words;
  const Index M = rows.M, N = rows.N, skipped = rows.first * rows.N;
  const Index P = (M + 1) / 2, last = least(P, (block + 1) * kPairs);
  float* const sums_N = rows.sums + block * N;
  for (Index begin = block * kPairs; begin < last; begin += kStep)
    for (Index n = 0; n < N; n += W) {
      const __mmask16 some = mask_of(N - n);
      V sum = begin == block * kPairs ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(some, sums_N + n);
      const auto one = [&](Index m) {
        const Index at = m * N + n;
        ahead(grad + at + 2 * kStep * N);
        if (gelu) ahead(h + at + 2 * kStep * N);
        __m256i g = _mm256_maskz_loadu_epi16(some, grad + at);
        if (gelu) {
          g = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(wide(g), gelu_slope(load16(h + at, some))));
          store16(dh + at - skipped, some, g);
        }
        sum = _mm512_add_ps(sum, wide(g));
        return _mm512_cvtepu16_epi32(g);
      };
      Word* const to = words + n / kRows * kRows * apart(P) + n % kRows;  // whole panels before it
      for (Index p = begin; p < least(last, begin + kStep); ++p) {
        const __m512i low = one(2 * p), high = 2 * p + 1 < M ? one(2 * p + 1) : _mm512_setzero_si512();
        if (words) _mm512_storeu_si512(to + p * kRows, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
      _mm512_mask_storeu_ps(sums_N + n, some, sum);
    }
}

}  // namespace

void gradient_rows(const GradientRows& rows, Index block) {
  rows.h ? gradient_rows_of<true>(rows, block) : gradient_rows_of<false>(rows, block);
}

}  // namespace ditto_cpu
#endif
