// Products by panels: both operands are packed as tiles read them, and a tile keeps its part of C in registers, leaf
// after leaf. Packing decides the order of a sum's terms. Compiled once for each instruction set.
#pragma once

#include "factors.h"

namespace ditto_exact::DITTO_EXACT_NS {

// The shapes of tiles, rows by vectors: for wide outputs, and for those of a head's width.
#if defined(DITTO_EXACT_AVX512)
constexpr int kRows = 8, kVectors = 3, kNarrowRows = 14, kNarrowVectors = 2;
#elif defined(DITTO_EXACT_AVX2)
constexpr int kRows = 6, kVectors = 2, kNarrowRows = 6, kNarrowVectors = 2;
#elif defined(DITTO_EXACT_NEON)
constexpr int kRows = 8, kVectors = 3, kNarrowRows = 8, kNarrowVectors = 3;
#else
constexpr int kRows = 4, kVectors = 2, kNarrowRows = 4, kNarrowVectors = 2;
#endif

constexpr Index kRowsPacked = 160 * 1024;  // numbers of A that a thread packs at once: in its second cache

template <class F>
inline void shared(const Workers& workers, Index count, F task) {
  if (workers.threads <= 1 || count <= 1) return task(Index{0}, count);
  workers.run(count, &task, [](void* what, Index begin, Index end) { (*static_cast<F*>(what))(begin, end); });
}

// rows x K numbers as [K][wide], +0 for rows that are not there. Where `wide` is no multiple of a vector, each k's
// numbers are stored over what the one before has too much: `out` has a vector more than K * wide.
inline void pack_run(View a, Index rows, Index K, int wide, float* out) {
  if (a.rows == 1) {
    for (Index k = 0; k < K; ++k) {
      const float* const from = a.p + k * a.columns;
      float* const to = out + k * wide;
      Index i = 0;
      for (; i + W <= rows; i += W) store(to + i, load(from + i));
      for (; i < rows; ++i) to[i] = from[i];
      for (; i < wide; ++i) to[i] = 0;
    }
    return;
  }
  for (Index first = 0; first < wide; first += W) {
    const Index here = most(0, least(W, rows - first));
    const float* const from = a.p + first * a.rows;
    Index k = 0;
    if (a.columns == 1)
      for (; k + W <= K; k += W) {
        V r[W];
#pragma GCC unroll 16
        for (int j = 0; j < W; ++j) r[j] = j < here ? load(from + j * a.rows + k) : V{};
        turn<V, I, W, W / 2>(r);
#pragma GCC unroll 16
        for (int j = 0; j < W; ++j) store(out + (k + j) * wide + first, r[j]);
      }
    const Index lanes = least(W, wide - first);
    for (; k < K; ++k)
      for (Index j = 0; j < lanes; ++j) out[k * wide + first + j] = j < here ? from[j * a.rows + k * a.columns] : 0.0f;
  }
}
#if defined(DITTO_EXACT_AVX512)
inline void pack_run8(View a, Index K, float* out) {  // eight rows, half of a vector
  typedef float H __attribute__((vector_size(32)));
  typedef std::int32_t J __attribute__((vector_size(32)));
  Index k = 0;
  for (; k + 8 <= K; k += 8) {
    H r[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) __builtin_memcpy(&r[j], a.p + j * a.rows + k, 32);
    turn<H, J, 8, 4>(r);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) __builtin_memcpy(out + (k + j) * 8, &r[j], 32);
  }
  for (; k < K; ++k)
    for (int j = 0; j < 8; ++j) out[k * 8 + j] = a.p[j * a.rows + k];
}
#endif

// k through the order's runs.
inline void pack(View a, Index rows, const Order& order, int wide, float* out) {
  for (const Run* run = order.runs; run < order.runs + order.run_count; ++run) {
    const View from{a.p + run->start * a.columns, a.rows, a.columns};
#if defined(DITTO_EXACT_AVX512)
    if (wide == 8 && rows == 8 && a.columns == 1 && a.rows != 1)
      pack_run8(from, run->length, out);
    else
#endif
      pack_run(from, rows, run->length, wide, out);
    out += run->length * wide;
  }
}

// Panels of rows whose numbers of one k follow one another in memory. Sixteen lines of memory for all panels, then the
// next: what a line has goes to many panels, and should leave the caches once. k is in [begin, end) of what is packed.
template <int wide>
void pack_lines(View a, Index panels, const Order& order, Index begin, Index end, float* out, Index panel) {
  constexpr Index kLines = 16;
  for (Index r = 0, first = 0; r < order.run_count; first += order.runs[r].length, ++r) {
    const Index last = least(end, first + order.runs[r].length);
    for (Index k = most(begin, first); k < last; k += kLines) {
      const float* const from = a.p + (order.runs[r].start + k - first) * a.columns;
      const Index lines = least(kLines, last - k);
      for (Index q = 0; q < panels; ++q)
        for (Index i = 0; i < lines; ++i)
          __builtin_memcpy(out + q * panel + (k + i) * wide, from + i * a.columns + q * wide, sizeof(float) * wide);
    }
  }
}

// A tile of MR x NV vectors: each leaf a chain in registers, merged with the open nodes of the tree below it. Rows
// beyond m and columns beyond n are computed and left out. Meanwhile a cache line a step is fetched from `ahead`. A and
// B are packed as Terms reads them.
template <int MR, int NV, class Terms = OneByOne>
void tile(const float* A, const float* B, const Leaf* leaves, Index count, float* C, Index c_rows, Index m, Index n,
          const float* bias, const float* ahead = nullptr, const float* bias_of_rows = nullptr) {
  constexpr int NR = NV * W;
  if (!ahead) ahead = B;
  alignas(64) V open[kMostOpen][MR][NV];
  V sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) sum[i][j] = V{};
  Index top = 0, k = 0;
  for (Index leaf = 0; leaf < count; ++leaf) {
    if (leaf > 0) {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) open[top][i][j] = sum[i][j], sum[i][j] = V{};
      ++top;
    }
    const Index end = leaves[leaf].end;
    for (; k < end; k += Terms::kAtOnce) {
      V b[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) b[j] = load(B + j * W);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const V a = set(A[i]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) sum[i][j] = Terms::add(a, b[j], sum[i][j]);
      }
      __builtin_prefetch(ahead, 0, 2);
      A += MR, B += NR, ahead += kLine;
    }
    k = end;
    for (int merges = leaves[leaf].merges; merges > 0 && top > 0; --merges) {  // the left half is open
      --top;
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) sum[i][j] = open[top][i][j] + sum[i][j];
    }
  }
  if (bias) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      const V b = n == NR ? load(bias + j * W) : n > j * W ? some(bias + j * W, n - j * W) : V{};
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) sum[i][j] = sum[i][j] + b;
    }
  }
  if (bias_of_rows) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const V b = set(i < m ? bias_of_rows[i] : 0.0f);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) sum[i][j] = sum[i][j] + b;
    }
  }
  if (m == MR && n == NR) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) store(C + i * c_rows + j * W, sum[i][j]);
    return;
  }
  alignas(64) float out[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) store(&out[i][j * W], sum[i][j]);
  for (Index i = 0; i < m; ++i) __builtin_memcpy(C + i * c_rows, out[i], sizeof(float) * static_cast<std::size_t>(n));
}

// Panels [first, end) of a's rows. Between panels is a cache line more: where K is a power of two, all of them would be
// in the same few places of the caches.
template <int wide, class Terms>
struct Panels {
  View a;
  Index rows;  // of all panels
  const Order& order;
  Index K;
  bool bf16;
  std::uint32_t rest;  // of pairs
  float* packed;
  Index size() const { return K * wide + kLine; }
  bool in_lines() const { return a.rows == 1; }
  Index whole(Index first, Index end) const { return most(first, least(end, rows / wide)); }
  void lines(Index first, Index end, Index k, Index k_end) const {
    pack_lines<wide>({a.p + first * wide, 1, a.columns}, whole(first, end) - first, order, k, k_end, packed, size());
  }
  void each(Index first, Index end) const {  // that lines() leaves out
    for (Index q = in_lines() ? whole(first, end) : first; q < end; ++q)
      pack({a.p + q * wide * a.rows, a.rows, a.columns}, least(wide, rows - q * wide), order, wide,
           packed + (q - first) * size());
  }
  bool rounds() const { return Terms::kAtOnce > 1 || bf16; }
  void round(Index first, Index end) const {  // once they are packed
    for (Index q = 0; q < end - first; ++q)
      if constexpr (Terms::kAtOnce > 1)
        pair_up(packed + q * size(), wide, order, rest);
      else
        round_to_bf16(packed + q * size(), K * wide);
  }
};

template <int MR, int NV, class Terms>
void product_by(const Product& p, const Workers& workers) {
  constexpr int NR = NV * W;
  const Index columns = parts(p.N, NR), panels = parts(p.M, MR), K = p.K;
  // Blocks of rows of A, as many for every thread. Few rows: threads share the columns too.
  Index blocks = parts(panels, most(1, least(panels, kRowsPacked / most(1, K * MR))));
  const Index threads = workers.threads;
  if (threads > 1 && panels >= 4 * threads) blocks = parts(blocks, threads) * threads;
  const Index block = parts(panels, blocks), groups = panels >= 4 * threads ? 1 : least(columns, threads);
  blocks = parts(panels, block);
  const Index width = parts(columns, groups);
  Panels<NR, Terms> b{{p.b.p, p.b.columns, p.b.rows}, p.N, p.order, K, p.bf16, 0};
  b.packed = room(Room::columns, columns * b.size() + W);
  if (b.in_lines()) {
    constexpr Index kAtOnce = 32;
    shared(workers, parts(K, kAtOnce),
           [&](Index begin, Index end) { b.lines(0, columns, begin * kAtOnce, least(K, end * kAtOnce)); });
    b.each(0, columns);
  }
  if (!b.in_lines() || b.rounds())
    shared(workers, columns, [&](Index begin, Index end) {
      Panels<NR, Terms> some = b;
      some.packed += begin * b.size();
      if (!b.in_lines()) some.each(begin, end);
      if (b.rounds()) some.round(begin, end);
    });
  const auto part = [&](Index at) {
    Panels<MR, Terms> a{p.a, p.M, p.order, K, p.bf16, 0x8000};
    a.packed = room(Room::rows, block * a.size() + W);
    const Index first = at / groups * block, end = least(first + block, panels);
    if (a.in_lines()) a.lines(first, end, 0, K);
    a.each(first, end);
    if (a.rounds()) a.round(first, end);
    // The next panel of B comes from beyond the second cache: the last tiles of a panel, each a part, fetch it there.
    const auto ahead = [&](Index c, Index q) {
      const Index part = NV - (end - q);
      return c + 1 < columns && part >= 0 ? b.packed + (c + 1) * b.size() + part * kLine * K : nullptr;
    };
    for (Index c = at % groups * width; c < least(columns, (at % groups + 1) * width); ++c)
      for (Index q = first; q < end; ++q) {
        const float *const of_a = a.packed + (q - first) * a.size(), *const of_b = b.packed + c * b.size();
        const auto add =
            Terms::fits(of_a + K * MR, of_b + K * NR) ? tile<MR, NV, Terms> : tile<MR, NV, typename Terms::Otherwise>;
        add(of_a, of_b, p.order.leaves, p.order.leaf_count, p.c + q * MR * p.c_rows + c * NR, p.c_rows,
            least(MR, p.M - q * MR), least(NR, p.N - c * NR), p.bias ? p.bias + c * NR : nullptr, ahead(c, q), nullptr);
      }
  };
  shared(workers, blocks * groups, [&](Index begin, Index end) {
    for (Index at = begin; at < end; ++at) part(at);
  });
}

constexpr Index kPacked = Index{4} << 20;  // numbers that are packed at once: the memory they take is bounded

// A tile that wastes less of the output's width is the faster one.
inline bool narrower(Index columns) {
  const Index wide = kVectors * W, narrow = kNarrowVectors * W;
  return parts(columns, narrow) * narrow < parts(columns, wide) * wide;
}
inline Workers workers_for(Index multiply_adds, const Workers& all) {
  constexpr Index kShared = Index{1} << 20;  // to wake and await a thread takes as long as these
  return {multiply_adds < kShared ? 1 : all.threads, all.run};
}

template <class Terms>
void product_of(const Product& p, const Workers& all) {
  if (p.M <= 0 || p.N <= 0) return;
  const Workers workers = workers_for(p.M * p.N * p.K, all);
  const bool narrow = narrower(p.N);
  const Index columns = (narrow ? kNarrowVectors : kVectors) * W;
  const Index at_once = most(1, kPacked / most(1, p.K * columns)) * columns;
  for (Index n = 0; n < p.N; n += at_once) {
    Product part = p;
    part.N = least(at_once, p.N - n);
    part.b.p += n * p.b.columns, part.c += n;
    if (p.bias) part.bias += n;
    if (narrow)
      product_by<kNarrowRows, kNarrowVectors, Terms>(part, workers);
    else
      product_by<kRows, kVectors, Terms>(part, workers);
  }
}
inline void product(const Product& p, const Workers& all) { product_of<OneByOne>(p, all); }

}  // namespace ditto_exact::DITTO_EXACT_NS
