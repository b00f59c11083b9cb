// A product whose bits follow from the operands and fixed leaves alone. No tensor cores: each number of C is one
// thread's, which adds its terms in the order of the rule. A block makes a tile of C, a thread kM x kN of it, with the
// next step's operands on their way while it computes.
#include "numbers.h"

namespace ditto_cuda {

namespace {

constexpr int kTileM = 128, kTileN = 64, kStep = 16, kM = 8, kN = 4, kThreads = 256;
constexpr int kOpen = 2;                               // nodes in shared memory: two blocks are on a processor at once
constexpr int kRowA = kTileM + 4, kRowB = kTileN + 4;  // a step's rows lie four numbers apart, in other banks
constexpr int kFromA = kTileM * kStep / kThreads, kFromB = kTileN * kStep / kThreads;  // that a thread fetches
constexpr std::size_t kShared = sizeof(float) * (2 * kStep * (kRowA + kRowB) + kOpen * kM * kN * kThreads);

// A thread's part of a strip of an operand, [rows, kStep]: neighbours fetch what lies side by side.
template <int Rows, int Count>
struct Strip {
  float next[Count];
  bool along_k;

  DITTO_DEVICE int row(int i) const {
    const int at = i * kThreads + thread_at();
    return along_k ? at / kStep : at % Rows;
  }
  DITTO_DEVICE int step(int i) const {
    const int at = i * kThreads + thread_at();
    return along_k ? at % kStep : at / Rows;
  }
  // Numbers (row, k) of `from` are at rows * row + columns * k; beyond its ends there are zeros.
  DITTO_DEVICE void fetch(View from, Index first, Index end, const ExactProduct& p, Index k0) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const Index r = first + row(i), k = k0 + step(i);
      next[i] = 0;
      if (r >= end || k >= p.K) continue;
      next[i] = from.p[r * from.rows + (p.places ? p.places[k] : k) * from.columns];
      if (p.bf16) next[i] = from_bf16(to_bf16(next[i]));
    }
  }
  DITTO_DEVICE void keep(float* tile, int row_of_tile) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) tile[step(i) * row_of_tile + row(i)] = next[i];
  }
};

// One term of each of a thread's numbers of C.
DITTO_DEVICE void add_terms(const float* from_a, const float* from_b, float (&sum)[kM][kN]) {
  float a[kM], b[kN];
  load(from_a, a);
  load(from_b, b);
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j) sum[i][j] = fused(a[i], b[j], sum[i][j]);
}
DITTO_DEVICE void store_tile(const ExactProduct& p, Index first_row, Index first_column, const float (&sum)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const Index row = first_row + i, column = first_column + j;
      if (row < p.M && column < p.N) p.c[row * p.c_rows + column] = p.bias ? sum[i][j] + p.bias[column] : sum[i][j];
    }
}

DITTO_KERNEL(kThreads) product(ExactProduct p, Index more_nodes) {
  float* const a_tile = reinterpret_cast<float*>(shared_memory());  // [2][kStep][kRowA]
  float* const b_tile = a_tile + 2 * kStep * kRowA;                 // [2][kStep][kRowB]
  float* const open = b_tile + 2 * kStep * kRowB;                   // [kOpen][kM * kN][kThreads]
  const Index row0 = static_cast<Index>(block_y()) * kTileM, column0 = static_cast<Index>(block_x()) * kTileN;
  const int tm = thread_at() / (kTileN / kN) * kM, tn = thread_at() % (kTileN / kN) * kN;
  float* const more =
      p.open + (static_cast<Index>(block_y()) * blocks_x() + block_x()) * more_nodes * kM * kN * kThreads;
  const auto node = [&](int at) {
    return (at < kOpen ? open + at * kM * kN * kThreads : more + (at - kOpen) * kM * kN * kThreads) + thread_at();
  };
  float sum[kM][kN];
#pragma unroll
  for (int i = 0; i < kM; ++i) fill(0.0f, sum[i]);
  Strip<kTileM, kFromA> from_a;
  Strip<kTileN, kFromB> from_b;
  from_a.along_k = p.a.columns == 1;
  from_b.along_k = p.b.rows == 1;
  const auto fetch = [&](Index k0) {
    from_a.fetch(p.a, row0, p.M, p, k0);
    from_b.fetch({p.b.p, p.b.columns, p.b.rows}, column0, p.N, p, k0);
  };
  const auto keep = [&](int buffer) {
    from_a.keep(a_tile + buffer * kStep * kRowA, kRowA);
    from_b.keep(b_tile + buffer * kStep * kRowB, kRowB);
  };
  const auto add_step = [&](int buffer, int k) {
    add_terms(a_tile + (buffer * kStep + k) * kRowA + tm, b_tile + (buffer * kStep + k) * kRowB + tn, sum);
  };
  fetch(0);
  keep(0);
  block_barrier();
  Index leaf = 0, end = p.leaf_count > 0 ? p.leaves[0].end : 0;
  int top = 0, buffer = 0;
  // Leaves that end here: each is added to the left halves that it completes, and left open itself before the next.
  const auto close = [&](Index k) {
    for (; leaf < p.leaf_count && k == end; ++leaf) {
      for (int merges = p.leaves[leaf].merges; merges > 0 && top > 0; --merges) {
        const float* const left = node(--top);
#pragma unroll
        for (int i = 0; i < kM * kN; ++i) sum[i / kN][i % kN] = left[i * kThreads] + sum[i / kN][i % kN];
      }
      if (leaf + 1 == p.leaf_count) continue;
      float* const left = node(top++);
#pragma unroll
      for (int i = 0; i < kM * kN; ++i) left[i * kThreads] = sum[i / kN][i % kN], sum[i / kN][i % kN] = 0;
      end = p.leaves[leaf + 1].end;
    }
  };
  close(0);
  for (Index k0 = 0; k0 < p.K; k0 += kStep, buffer ^= 1) {
    const bool goes_on = k0 + kStep < p.K;
    if (goes_on) fetch(k0 + kStep);
    const int last = goes_on ? kStep : static_cast<int>(p.K - k0);
    for (int k = 0; k < last;) {
      const int stop = end - k0 < last ? static_cast<int>(end - k0) : last;
      if (k == 0 && stop == kStep) {
#pragma unroll
        for (k = 0; k < kStep; ++k) add_step(buffer, k);
      } else {
#pragma unroll 1
        for (; k < stop; ++k) add_step(buffer, k);
      }
      close(k0 + k);
    }
    if (goes_on) keep(buffer ^ 1);
    block_barrier();
  }
  store_tile(p, row0 + tm, column0 + tn, sum);
}

Index tiles(Index size, int tile) { return (size + tile - 1) / tile; }

}  // namespace

Index open_room(Index M, Index N, Index open_nodes) {
  const Index more = open_nodes > kOpen ? open_nodes - kOpen : 0;
  return tiles(M, kTileM) * tiles(N, kTileN) * more * kM * kN * kThreads;
}

Status exact_product(const ExactProduct& p, Index open_nodes, Stream stream) {
  return launch(product, {tiles(p.N, kTileN), tiles(p.M, kTileM)}, kThreads, kShared, stream, p,
                open_nodes > kOpen ? open_nodes - kOpen : 0);
}

}  // namespace ditto_cuda
