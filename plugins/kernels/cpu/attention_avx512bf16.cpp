// Compiled for AVX-512 with its instruction for pairs of bf16 numbers, and called where the processor has it. Calls
// nothing inline of the standard library: a linker keeps one copy of such a function.
//
// Both passes work on scores with keys as rows and queries as lanes, so that what is summed over keys is summed lane by
// lane. A product C[8, n] += A[8, 2 P] B[2 P, n] takes pairs along what it sums over: of B as vectors of words, of A as
// single words, anywhere. Numbers become such words in two ways: rows turned (pairs along K), or two rows side by side
// (pairs along tokens).
#include "attention.h"

#if defined(__x86_64__)
#include <new>

#include "pairs_avx512bf16.h"

namespace ditto_cpu {

namespace {

constexpr Index kLanes = 32;     // queries of a tile, two vectors
constexpr Index kKeys = 256;     // of a block of the forward: its scores stay in the first cache
constexpr Index kApart = 5 * W;  // between what is read together, lest the same places of a cache be asked for
constexpr Index kBlock = 64;     // queries and keys of a block of the backward
constexpr float kInfinity = __builtin_inff(), kLog2E = 1.44269504f;

inline Index up(Index n, Index to) { return (n + to - 1) / to * to; }

// Room that a thread keeps. Throws std::bad_alloc.
constexpr std::align_val_t kLine{64};
struct Room {
  float* p = nullptr;
  Index size = 0;
  ~Room() { leave(); }
  void leave() {
    if (p) ::operator delete(p, kLine);
    p = nullptr, size = 0;
  }
  float* of(Index numbers) {
    if (numbers > size) {
      leave();
      p = static_cast<float*>(::operator new(static_cast<std::size_t>(numbers) * sizeof(float), kLine));
      size = numbers;
    }
    return p;
  }
};
thread_local Room scratch;

// C[8, NV vectors] of words A(i, p) = a[i * a_row + p * a_step] and vectors B(p) = b + p * b_step; added to what C
// holds, or not.
template <int NV, bool add>
inline void tile(const Word* a, Index a_row, Index a_step, const Word* b, Index b_step, Index P, float* c,
                 Index c_row) {
  V sum[8][NV];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sum[i][j] = add ? _mm512_loadu_ps(c + i * c_row + j * W) : _mm512_setzero_ps();
  for (Index p = 0; p < P; ++p) {
    __m512i right[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) right[j] = _mm512_loadu_si512(b + p * b_step + j * W);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) sum[i][j] = pairs(sum[i][j], a[i * a_row + p * a_step], right[j]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) _mm512_storeu_ps(c + i * c_row + j * W, sum[i][j]);
}

// C[rows, vectors of columns] of whole tiles.
template <bool add>
inline void product(const Word* a, Index a_row, Index a_step, const Word* b, Index b_step, Index P, float* c,
                    Index c_row, Index rows, Index vectors) {
  for (Index j = 0; j < vectors; j += 2)
    for (Index i = 0; i < rows; i += 8) {
      if (j + 1 < vectors)
        tile<2, add>(a + i * a_row, a_row, a_step, b + j * W, b_step, P, c + i * c_row + j * W, c_row);
      else
        tile<1, add>(a + i * a_row, a_row, a_step, b + j * W, b_step, P, c + i * c_row + j * W, c_row);
    }
}

// 2^x, for x at most 0 or so: exact to fp32's last bits or two; of -inf 0.
inline V exp2(V x) {
  const V n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(x, n);
  const V p = exp2_of_fraction(f);
  // Of -inf the polynomial is no number; what is none itself stays none.
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-150.0f), _CMP_NLE_UQ), p, n);
}

inline __m512i low_half(V x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); }
// Words of two rows' numbers, the first in the lower half.
inline __m512i beside(V first, V second) {
  return _mm512_or_si512(low_half(first), _mm512_slli_epi32(low_half(second), 16));
}
inline void store16(std::uint16_t* to, V x, Index count) {
  _mm256_mask_storeu_epi16(to, mask_of(count), (__m256i)_mm512_cvtneps_pbh(x));
}
inline V load16(const std::uint16_t* from, Index count) { return load16(from, mask_of(count)); }

// Asks for row i, long before it is needed: a head's rows are far apart, and the processor by itself reads ahead along
// a row only. There need not be one.
constexpr Index kAhead = 2 * W;
inline void ahead(const std::uint16_t* p, Index token, Index i, Index K) {
  for (Index k = 0; k < K; k += 2 * W) _mm_prefetch(reinterpret_cast<const char*>(p + i * token + k), _MM_HINT_T0);
}

// Pairs along K: words [K / 2][count rounded up to lanes], 0 for rows that are not there.
void pack_turned(Rows16 x, Index first, Index count, Index K, Index lanes, Word* out) {
  const Index words = K / 2;
  for (Index t = 0; t < lanes; t += W) {
    for (Index i = 0; i < W; ++i) ahead(x.p, x.token, first + t + kAhead + i, K);
    for (Index k = 0; k < words; k += W) {
      const auto some = mask_of(words - k);
      __m512i r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        r[i] = t + i < count
                   ? _mm512_maskz_loadu_epi32(some, reinterpret_cast<const Word*>(x.p + (first + t + i) * x.token) + k)
                   : _mm512_setzero_si512();
      turn(r);
      const Index here = least(W, words - k);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        if (i < here) _mm512_storeu_si512(out + (k + i) * lanes + t, r[i]);
    }
  }
}

// Pairs along tokens: words [rows / 2][wide], 0 for rows and columns that are not there; `rows` is even.
void pack_beside(Rows16 x, Index count, Index K, Index rows, Index wide, Word* out) {
  for (Index t = 0; t < rows; t += 2) {
    for (Index i = 0; i < 2; ++i) ahead(x.p, x.token, t + kAhead + i, K);
    for (Index k = 0; k < wide; k += W) {
      const Index left = K - k;
      const auto some = static_cast<__mmask16>(left >= W ? 0xFFFF : left > 0 ? (1u << left) - 1 : 0);
      const auto row = [&](Index i) {
        return i < count ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, x.p + i * x.token + k))
                         : _mm512_setzero_si512();
      };
      _mm512_storeu_si512(out + t / 2 * wide + k, _mm512_or_si512(row(t), _mm512_slli_epi32(row(t + 1), 16)));
    }
  }
}

// Where eight rows from `first` may not all be read, they are copied, with zeros.
const Word* eight_rows(Rows16 x, Index first, Index count, Index K, Word* copy, Index& row) {
  if (first + 8 <= count) return row = x.token / 2, reinterpret_cast<const Word*>(x.p + first * x.token);
  row = K / 2;
  for (Index i = 0; i < 8; ++i)
    for (Index k = 0; k < row; ++k)
      copy[i * row + k] = first + i < count ? reinterpret_cast<const Word*>(x.p + (first + i) * x.token)[k] : 0;
  return copy;
}

// C[rows rounded up to 8][lanes] of rows [first, ...) of x and what pack_turned made.
void scores_of(Rows16 x, Index first, Index rows, Index count, Index K, const Word* turned, Index step, Word* copy,
               float* c, Index lanes) {
  for (Index i = 0; i < rows; i += 8) {
    for (Index r = 0; r < 8; ++r) ahead(x.p, x.token, first + kAhead + i + r, K);
    Index row;
    const Word* const a = eight_rows(x, first + i, count, K, copy, row);
    for (Index j = 0; j < lanes; j += kLanes)
      if (j + W < lanes)
        tile<2, false>(a, row, 1, turned + j, step, K / 2, c + i * lanes + j, lanes);
      else
        tile<1, false>(a, row, 1, turned + j, step, K / 2, c + i * lanes + j, lanes);
  }
}

inline bool hidden(const AttentionHead& h, Index key) { return key >= h.S || (h.seen && !h.seen[key]); }
// Lanes of queries from t that see the key.
inline __mmask16 see(const AttentionHead& h, Index key, Index t) {
  if (hidden(h, key)) return 0;
  if (!h.causal || key <= t) return 0xFFFF;
  return key - t >= W ? 0 : static_cast<__mmask16>(0xFFFFu << (key - t));
}

// One block of queries [t, t + 32) and all keys.
struct Forward {
  const AttentionHead& h;
  Index wide, keys;  // K in whole vectors; keys of a block
  Word *turned, *shares, *copy;
  const Word* values;
  float *scores, *sums;

  void block(Index t, RowsOut16 out, float* lse) const {
    const Index vectors = wide / W, here = least(kLanes, h.T - t);
    pack_turned(h.q, t, here, h.K, kLanes, turned);
    const V c = _mm512_set1_ps(h.scale * kLog2E), none = _mm512_set1_ps(-kInfinity);
    V m[2] = {none, none}, l[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (Index first = 0; first < h.S; first += keys) {
      if (h.causal && first > t + kLanes - 1) break;
      const Index count = up(least(keys, h.S - first), 8);
      scores_of(h.k, first, count, h.S, h.K, turned, kLanes, copy, scores, kLanes);
      V most[2] = {m[0], m[1]}, fix[2], base[2];
      const bool all = !h.seen && !h.causal && first + count <= h.S;
      for (Index s = 0; s < count; ++s)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          V x = _mm512_mul_ps(_mm512_load_ps(scores + s * kLanes + j * W), c);
          if (!all) x = _mm512_mask_mov_ps(none, see(h, first + s, t + j * W), x);
          _mm512_store_ps(scores + s * kLanes + j * W, x);
          most[j] = _mm512_max_ps(x, most[j]);
        }
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        base[j] = _mm512_mask_mov_ps(most[j], _mm512_cmp_ps_mask(most[j], none, _CMP_EQ_OQ), _mm512_setzero_ps());
        fix[j] = exp2(_mm512_sub_ps(m[j], base[j]));
        l[j] = _mm512_mul_ps(l[j], fix[j]), m[j] = most[j];
      }
      for (Index s = 0; s < count; s += 2)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          const V a = exp2(_mm512_sub_ps(_mm512_load_ps(scores + s * kLanes + j * W), base[j]));
          const V b = exp2(_mm512_sub_ps(_mm512_load_ps(scores + (s + 1) * kLanes + j * W), base[j]));
          l[j] = _mm512_add_ps(l[j], _mm512_add_ps(a, b));
          _mm512_store_si512(shares + s / 2 * kLanes + j * W, beside(a, b));
        }
      const Word* const of_block = values + first / 2 * wide;
      if (first == 0) {
        product<false>(shares, 1, kLanes, of_block, wide, count / 2, sums, wide, kLanes, vectors);
      } else {
        alignas(64) float factor[kLanes];
        for (int j = 0; j < 2; ++j) _mm512_store_ps(factor + j * W, fix[j]);
        for (Index i = 0; i < kLanes; ++i)
          for (Index k = 0; k < wide; k += W)
            _mm512_store_ps(sums + i * wide + k,
                            _mm512_mul_ps(_mm512_load_ps(sums + i * wide + k), _mm512_set1_ps(factor[i])));
        product<true>(shares, 1, kLanes, of_block, wide, count / 2, sums, wide, kLanes, vectors);
      }
    }
    alignas(64) float total[kLanes], largest[kLanes];
    for (int j = 0; j < 2; ++j) _mm512_store_ps(total + j * W, l[j]), _mm512_store_ps(largest + j * W, m[j]);
    for (Index i = 0; i < here; ++i) {
      const V inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_set1_ps(total[i]));
      for (Index k = 0; k < h.K; k += W)
        store16(out.p + (t + i) * out.token + k, _mm512_mul_ps(_mm512_load_ps(sums + i * wide + k), inverse), h.K - k);
      lse[t + i] = total[i] == 0 ? -kInfinity : largest[i] + __builtin_log2f(total[i]);
    }
  }
};

}  // namespace

void attention(const AttentionHead& h, RowsOut16 out, float* lse) {
  const Index wide = up(h.K, W), rows = up(h.S, 8), words = h.K / 2;
  const Index sizes[] = {up(words, W) * kLanes, kKeys / 2 * kLanes, 8 * up(words, W),
                         rows / 2 * wide,       kKeys * kLanes,     kLanes * wide};
  Index all = 0;
  for (const Index size : sizes) all += size + kApart;
  float* p = scratch.of(all);
  float* place[6];
  for (int i = 0; i < 6; ++i) place[i] = p, p += sizes[i] + kApart;
  const auto words_at = [&](int i) { return reinterpret_cast<Word*>(place[i]); };
  pack_beside(h.v, h.S, h.K, rows, wide, words_at(3));
  const Forward forward{h, wide, kKeys, words_at(0), words_at(1), words_at(2), words_at(3), place[4], place[5]};
  for (Index t = 0; t < h.T; t += kLanes) forward.block(t, out, lse);
}

std::int64_t attention_sums(std::int64_t S, std::int64_t K) { return 2 * up(S, kBlock) * up(K, W); }

namespace {

// The number that a share is made with, and what is taken from the gradient of one, of T queries. True where a query
// sees no key.
[[gnu::always_inline]] inline bool prepare_queries(const AttentionBack& b, Index T, float* lse, float* delta) {
  const AttentionHead& h = b.head;
  bool blind = false;
  for (Index t = 0; t < T; ++t) {
    V sum = _mm512_setzero_ps();
    ahead(b.out.p, b.out.token, t + kAhead, h.K);
    if (t < h.T)
      for (Index k = 0; k < h.K; k += W)
        sum = _mm512_fmadd_ps(load16(b.out.p + t * b.out.token + k, h.K - k),
                              load16(b.grad.p + t * b.grad.token + k, h.K - k), sum);
    // A query that is not there, or sees no key, has no shares in what follows; of the latter the values' gradients are
    // no numbers, as its output is none.
    const bool sees = t < h.T && b.lse_T[t] != -kInfinity;
    if (t < h.T && !sees) blind = true;
    lse[t] = sees ? b.lse_T[t] : kInfinity;
    delta[t] = sees ? _mm512_reduce_add_ps(sum) : 0;
  }
  return blind;
}

// Of a block of keys from s and queries from t: where its scores and the gradients of its shares stand, and where to
// put its shares and the gradients of its scores, these also with two keys side by side.
template <Index lanes>
struct BackBlock {
  const float *lse, *delta, *scores, *grads;
  Word *shares, *back, *back_beside;

  [[gnu::always_inline]] inline void fill(const AttentionHead& h, Index s, Index t, Index keys, V c) const {
    auto* const p16 = reinterpret_cast<std::uint16_t*>(shares);
    auto* const d16 = reinterpret_cast<std::uint16_t*>(back);
    const bool all_seen = !h.seen && !h.causal && s + keys <= h.S;
    for (Index i = 0; i < keys; i += 2)
      for (Index j = 0; j < lanes; j += W) {
        const V of_lse = _mm512_load_ps(lse + t + j), of_delta = _mm512_load_ps(delta + t + j);
        __m256i d[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; ++r) {
          const Index at = (i + r) * lanes + j;
          V x = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores + at), c, of_lse));
          V back_of = _mm512_mul_ps(x, _mm512_sub_ps(_mm512_load_ps(grads + at), of_delta));
          if (!all_seen) {
            const __mmask16 seen = see(h, s + i + r, t + j);
            x = _mm512_maskz_mov_ps(seen, x), back_of = _mm512_maskz_mov_ps(seen, back_of);
          }
          d[r] = (__m256i)_mm512_cvtneps_pbh(back_of);
          _mm256_store_si256(reinterpret_cast<__m256i*>(p16 + at), (__m256i)_mm512_cvtneps_pbh(x));
          _mm256_store_si256(reinterpret_cast<__m256i*>(d16 + at), d[r]);
        }
        _mm512_store_si512(
            back_beside + i / 2 * lanes + j,
            _mm512_or_si512(_mm512_cvtepu16_epi32(d[0]), _mm512_slli_epi32(_mm512_cvtepu16_epi32(d[1]), 16)));
      }
  }
};

// By blocks of so many queries.
template <Index lanes>
void back_in_blocks(const AttentionBack& b) {
  const AttentionHead& h = b.head;
  const Index wide = up(h.K, W), vectors = wide / W, words = h.K / 2, T = up(h.T, lanes), S = up(h.S, kBlock);
  enum {
    q_turned,
    grad_turned,
    q_beside,
    grad_beside,
    k_beside,
    delta,
    lse,
    dq,
    copy,
    scores,
    grads,
    shares,
    back,
    back_beside,
    count
  };
  const Index block = kBlock * lanes;
  const Index sizes[count] = {words * T, words * T, T / 2 * wide, T / 2 * wide,     S / 2 * wide,
                              T,         T,         T * wide,     8 * up(words, W), block,
                              block,     block / 2, block / 2,    block / 2};
  Index all = 0;
  for (const Index size : sizes) all += size + kApart;
  float* p = scratch.of(all);
  float* place[count];
  for (int i = 0; i < count; ++i) place[i] = p, p += sizes[i] + kApart;
  const auto words_at = [&](int i) { return reinterpret_cast<Word*>(place[i]); };
  for (Index t = 0; t < T; t += lanes) {
    pack_turned(h.q, t, least(lanes, h.T - t), h.K, lanes, words_at(q_turned) + t * words);
    pack_turned(b.grad, t, least(lanes, h.T - t), h.K, lanes, words_at(grad_turned) + t * words);
  }
  pack_beside(h.q, h.T, h.K, T, wide, words_at(q_beside));
  pack_beside(b.grad, h.T, h.K, T, wide, words_at(grad_beside));
  pack_beside(h.k, h.S, h.K, S, wide, words_at(k_beside));
  const bool blind = prepare_queries(b, T, place[lse], place[delta]);
  float* const dk = b.sums;
  float* const dv = b.sums + S * wide;
  if (b.first)
    for (Index i = 0; i < 2 * S * wide; i += W) _mm512_storeu_ps(b.sums + i, _mm512_setzero_ps());
  for (Index i = 0; i < T * wide; i += W) _mm512_store_ps(place[dq] + i, _mm512_setzero_ps());
  const V c = _mm512_set1_ps(h.scale * kLog2E);
  const BackBlock<lanes> block_of{place[lse],       place[delta],   place[scores],        place[grads],
                                  words_at(shares), words_at(back), words_at(back_beside)};
  for (Index s = 0; s < S; s += kBlock)
    for (Index t = 0; t < T; t += lanes) {
      if (h.causal && s > t + lanes - 1) continue;
      const Index keys = least(kBlock, up(h.S - s, 8));
      scores_of(h.k, s, keys, h.S, h.K, words_at(q_turned) + t * words, lanes, words_at(copy), place[scores], lanes);
      scores_of(h.v, s, keys, h.S, h.K, words_at(grad_turned) + t * words, lanes, words_at(copy), place[grads], lanes);
      block_of.fill(h, s, t, keys, c);
      product<true>(words_at(shares), lanes / 2, 1, words_at(grad_beside) + t / 2 * wide, wide, lanes / 2,
                    dv + s * wide, wide, keys, vectors);
      product<true>(words_at(back), lanes / 2, 1, words_at(q_beside) + t / 2 * wide, wide, lanes / 2, dk + s * wide,
                    wide, keys, vectors);
      product<true>(words_at(back_beside), 1, lanes, words_at(k_beside) + s / 2 * wide, wide, keys / 2,
                    place[dq] + t * wide, wide, lanes, vectors);
    }
  const V scale = _mm512_set1_ps(h.scale);
  const auto give = [&](RowsOut16 to, const float* from, Index rows, V by) {
    for (Index i = 0; i < rows; ++i)
      for (Index k = 0; k < h.K; k += W)
        store16(to.p + i * to.token + k, _mm512_mul_ps(_mm512_loadu_ps(from + i * wide + k), by), h.K - k);
  };
  give(b.dq, place[dq], h.T, scale);
  if (blind)
    for (Index i = 0; i < S * wide; i += W) _mm512_storeu_ps(dv + i, _mm512_set1_ps(__builtin_nanf("")));
  if (!b.last) return;
  give(b.dk, dk, h.S, scale);
  give(b.dv, dv, h.S, _mm512_set1_ps(1.0f));
}

}  // namespace

void attention_back(const AttentionBack& b) {
  if (b.head.T <= W) return back_in_blocks<W>(b);
  b.head.T <= 2 * W ? back_in_blocks<2 * W>(b) : back_in_blocks<kBlock>(b);
}

bool has_bf16_pairs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace ditto_cpu
#endif
