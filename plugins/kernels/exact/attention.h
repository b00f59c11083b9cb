// Softmax attention of one head, over leaves of keys: a leaf has a largest score of its own, and when two nodes (m, l,
// o) are merged both are brought to the larger one (M. Milakov and N. Gimelshein, 2018, arXiv:1805.02867). A key that a
// query does not see has the share +0; a leaf without a seen key is (-inf, 0, 0), which a merge leaves out exactly but
// for the sign of a zero, and results have +0 added. Compiled once for each instruction set.
//
// Forward has queries in the lanes of a vector, so that nothing is summed across lanes.
#pragma once

#include "product.h"
#include "rows.h"

namespace ditto_exact::DITTO_EXACT_NS {

#if defined(DITTO_EXACT_AVX512)
constexpr int kKeys = 8, kLanes = 2;  // of a tile: keys, or numbers of a head, by vectors of queries
#elif defined(DITTO_EXACT_AVX2)
constexpr int kKeys = 4, kLanes = 3;
#elif defined(DITTO_EXACT_NEON)
constexpr int kKeys = 8, kLanes = 2;
#else
constexpr int kKeys = 4, kLanes = 2;
#endif
constexpr int kQueries = kLanes * W;

// A node of a block of queries: o [D][queries], l, m.
struct Node {
  float *o, *l, *m;
};

// Keys beyond the last one that anybody sees change nothing.
inline Index seen_keys(const Attention& p) {
  Index S = p.S;
  if (p.seen)
    while (S > 0 && !p.seen[S - 1]) --S;
  return p.causal ? least(S, p.T) : S;
}

// Shares of a leaf's keys [first, first + n) in place of their scores, l and m.
inline void shares(const Attention& p, Index query, Index first, Index n, float* scores, const Node& node) {
  const bool behind = p.causal && first + n - 1 > query;
  for (int j = 0; j < kLanes; ++j) {
    float* const s = scores + j * W;
    I place;
    for (int i = 0; i < W; ++i) place[i] = static_cast<std::int32_t>(query + j * W + i);
    const auto hidden = [&](Index key, V x, float otherwise) {
      if (p.seen && !p.seen[key]) return set(otherwise);
      return behind ? (set(static_cast<std::int32_t>(key)) > place ? set(otherwise) : x) : x;
    };
    V m = set(-kInfinity), l = V{};
    for (Index i = 0; i < n; ++i) m = larger(m, hidden(first + i, load(s + i * kQueries), -kInfinity));
    for (Index i = 0; i < n; ++i) {
      const V share = hidden(first + i, exp(load(s + i * kQueries) - m), 0.0f);
      l = l + share;
      store(s + i * kQueries, share);
    }
    store(node.m + j * W, m), store(node.l + j * W, l);
  }
}

inline void merge(const Node& a, const Node& b, Index D) {
  V ea[kLanes], eb[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    const V ma = load(a.m + j * W), mb = load(b.m + j * W), top = larger(ma, mb);
    ea[j] = ma == top ? set(1.0f) : exp(ma - top), eb[j] = mb == top ? set(1.0f) : exp(mb - top);
    store(a.m + j * W, top);
    store(a.l + j * W, fma(load(a.l + j * W), ea[j], load(b.l + j * W) * eb[j]));
  }
  for (Index d = 0; d < D; ++d)
    for (int j = 0; j < kLanes; ++j) {
      float* const x = a.o + d * kQueries + j * W;
      store(x, fma(load(x), ea[j], load(b.o + d * kQueries + j * W) * eb[j]));
    }
}

// [D][queries] to rows of D.
inline void turn_out(const float* o, Index n, Index D, float* out, Index out_token) {
  for (Index q = 0; q < n; q += W) {
    Index d = 0;
    if (q + W <= n)
      for (; d + W <= D; d += W) {
        V r[W];
#pragma GCC unroll 16
        for (int j = 0; j < W; ++j) r[j] = load(o + (d + j) * kQueries + q);
        turn<V, I, W, W / 2>(r);
#pragma GCC unroll 16
        for (int j = 0; j < W; ++j) store(out + (q + j) * out_token + d, r[j]);
      }
    for (; d < D; ++d)
      for (Index i = q; i < least(n, q + W); ++i) out[i * out_token + d] = o[d * kQueries + i];
  }
}

void attention(const Attention& p) {
  const Index D = p.D, S = seen_keys(p), leaves = parts(S, p.leaf), leaf = least(p.leaf, most(1, S));
  if (p.S == 0) {
    for (Index t = 0; t < p.T; ++t)
      fill(p.out + t * p.out_token, 0.0f, D), p.m[t] = -kInfinity, p.inverse[t] = kInfinity;
    return;
  }
  const Index key_panels = parts(leaf, kKeys), value_panels = parts(D, kKeys);
  const Run numbers{0, D};
  const Leaf all{D, 0};
  const Order along_head{&numbers, 1, &all, 1};
  float* const keys = room(Room::keys, leaves * key_panels * kKeys * D + W);
  float* const values = room(Room::values, leaves * leaf * value_panels * kKeys + W);
  for (Index i = 0; i < leaves; ++i) {
    const Index first = i * leaf, n = least(leaf, S - first);
    for (Index j = 0; j < parts(n, kKeys); ++j)
      pack({p.k + (first + j * kKeys) * p.k_token, p.k_token, 1}, least(kKeys, n - j * kKeys), along_head, kKeys,
           keys + (i * key_panels + j) * kKeys * D);
    for (Index j = 0; j < value_panels; ++j)
      pack_run({p.v + first * p.v_token + j * kKeys, 1, p.v_token}, least(kKeys, D - j * kKeys), n, kKeys,
               values + i * leaf * value_panels * kKeys + j * n * kKeys);
  }
  const Index size = (D + 2) * kQueries;
  float* const queries = room(Room::queries, D * kQueries + W);
  float* const scores = room(Room::scores, leaf * kQueries);
  int depth = 2;
  for (Index i = leaves; i > 1; i = parts(i, 2)) ++depth;
  float* const nodes = room(Room::nodes, depth * size);
  for (Index t = 0; t < p.T; t += kQueries) {
    const Index here = least(kQueries, p.T - t), last = p.causal ? least(S, t + here) : S, count = parts(last, leaf);
    pack({p.q + t * p.q_token, p.q_token, 1}, here, along_head, kQueries, queries);
    each(D * kQueries, [&](Index i, Index) { store(queries + i, load(queries + i) * set(p.scale)); });
    Index top = 0;
    const auto node = [&](Index i) {
      float* const o = nodes + i * size;
      return Node{o, o + D * kQueries, o + (D + 1) * kQueries};
    };
    if (count == 0) fill(node(0).o, 0.0f, (D + 1) * kQueries), fill(node(0).m, -kInfinity, kQueries), top = 1;
    for (Index i = 0; i < count; ++i) {
      const Index first = i * leaf, n = least(leaf, S - first);
      const Leaf whole{n, 0};
      for (Index j = 0; j < parts(n, kKeys); ++j)
        tile<kKeys, kLanes>(keys + (i * key_panels + j) * kKeys * D, queries, &all, 1, scores + j * kKeys * kQueries,
                            kQueries, least(kKeys, n - j * kKeys), kQueries, nullptr);
      if (p.bias)
        for (Index key = 0; key < n; ++key)
          for (Index q = 0; q < here; ++q) scores[key * kQueries + q] += p.bias[(t + q) * p.S + first + key];
      const Node made = node(top++);
      shares(p, t, first, n, scores, made);
      for (Index j = 0; j < value_panels; ++j)
        tile<kKeys, kLanes>(values + i * leaf * value_panels * kKeys + j * n * kKeys, scores, &whole, 1,
                            made.o + j * kKeys * kQueries, kQueries, least(kKeys, D - j * kKeys), kQueries, nullptr);
      for (int merges = merges_after(i, count); merges > 0; --merges, --top) merge(node(top - 2), node(top - 1), D);
    }
    const Node whole = node(0);
    for (int j = 0; j < kLanes; ++j) {
      const V inverse = set(1.0f) / load(whole.l + j * W);
      some(p.m + t + j * W, load(whole.m + j * W), here - j * W);
      some(p.inverse + t + j * W, inverse, here - j * W);
      for (Index d = 0; d < D; ++d) {
        float* const x = whole.o + d * kQueries + j * W;
        store(x, load(x) * inverse + V{});
      }
    }
    turn_out(whole.o, here, D, p.out + t * p.out_token, p.out_token);
  }
}

// Of scores [T, n] of the keys from `first` the shares, and of the shares' gradients those of the scores.
inline void shares_back(const Attention& p, Index first, Index n, const float* m, const float* inverse,
                        const float* delta, float* scores, float* grads) {
  for (Index t = 0; t < p.T; ++t) {
    const V shift = set(m[t]), inv = set(inverse[t]), of_row = set(delta[t]);
    const Index visible = p.causal ? most(0, least(n, t + 1 - first)) : n;
    float *const s = scores + t * n, *const g = grads + t * n;
    each(visible, [&](Index i, Index left) {
      const V share = exp(some(s + i, left) - shift) * inv;
      some(g + i, share * (some(g + i, left) - of_row), left);
      some(s + i, share, left);
    });
    for (Index i = visible; i < n; ++i) s[i] = g[i] = 0;
    if (p.seen)
      for (Index i = 0; i < visible; ++i)
        if (!p.seen[first + i]) s[i] = g[i] = 0;
  }
}

inline float dot(const float* a, const float* b, Index n) {
  return along(n, [&](Lanes& sum, Index i, Index left) {
    const Lanes x = load16(a + i, left), y = load16(b + i, left);
    for (int j = 0; j < 16 / W; ++j) sum.v[j] = fma(x.v[j], y.v[j], sum.v[j]);
  });
}

// A product of one thread by leaves of `leaf` terms.
inline void multiply(Index M, Index N, Index K, View a, View b, float* c, Index c_rows, const Leaf* leaves,
                     Index count) {
  const Run all{0, K};
  product({M, N, K, a, b, c, c_rows, nullptr, {&all, 1, leaves, count}}, {1, nullptr});
}

// Keys in blocks of a power of two of leaves, so that a block's share in a query's gradient is a node of its tree over
// keys. A key's gradient is a tree over leaves of queries, then over the heads that share it.
void attention_back(const AttentionBack& back) {
  const Attention& p = back.of;
  const Index T = p.T, S = p.S, D = p.D, leaf = p.leaf;
  for (Index s = 0; s < S; ++s) fill(back.dk + s * back.dk_token, 0.0f, D), fill(back.dv + s * back.dv_token, 0.0f, D);
  Index block = leaf;
  while (block < S && 2 * block * T <= 64 * 1024) block *= 2;
  const Index blocks = parts(S, block), key_leaves = parts(least(S, block), leaf), query_leaves = parts(T, leaf);
  float* const scaled = room(Room::queries, T * D + 2 * T);
  float* const delta = scaled + T * D;
  float* const scores = room(Room::scores, T * least(S, block));
  float* const grads = room(Room::gradients, T * least(S, block));
  // Open nodes of dq; then of dk and dv over heads, if several share them.
  int depth = 2, head_depth = 2;
  for (Index i = blocks; i > 1; i = parts(i, 2)) ++depth;
  for (Index i = back.heads; i > 1; i = parts(i, 2)) ++head_depth;
  float* const nodes = room(Room::nodes, depth * T * D + 2 * head_depth * S * D);
  float* const key_nodes = nodes + depth * T * D;
  auto* const list = reinterpret_cast<Leaf*>(
      room(Room::temporary, (query_leaves + 2 * key_leaves) * static_cast<Index>(sizeof(Leaf) / sizeof(float))));
  Leaf *const of_queries = list, *const of_keys = list + query_leaves, *const of_last = of_keys + key_leaves;
  const auto cut = [leaf](Leaf* leaves, Index size) {
    const Index count = parts(size, leaf);
    for (Index i = 0; i < count; ++i) leaves[i] = {least(size, (i + 1) * leaf), merges_after(i, count)};
  };
  cut(of_queries, T), cut(of_keys, least(S, block));
  if (blocks > 0) cut(of_last, S - (blocks - 1) * block);
  const Leaf head{D, 0};
  Index key_top = 0;
  for (Index h = 0; h < back.heads; ++h) {
    const float *const q = p.q + h * back.q_head, *const grad = back.grad + h * back.out_head,
                       *const out = p.out + h * back.out_head;
    for (Index t = 0; t < T; ++t) {
      each(D, [&](Index i, Index left) {
        some(scaled + t * D + i, some(q + t * p.q_token + i, left) * set(p.scale), left);
      });
      delta[t] = dot(out + t * p.out_token, grad + t * p.out_token, D);
    }
    float *const dk = key_nodes + key_top * 2 * S * D, *const dv = dk + S * D;
    ++key_top;
    Index top = 0;
    for (Index b = 0; b < blocks; ++b) {
      const Index first = b * block, n = least(block, S - first);
      const float *const k = p.k + first * p.k_token, *const v = p.v + first * p.v_token;
      multiply(T, n, D, {scaled, D, 1}, {k, 1, p.k_token}, scores, n, &head, 1);
      multiply(T, n, D, {grad, p.out_token, 1}, {v, 1, p.v_token}, grads, n, &head, 1);
      shares_back(p, first, n, p.m + h * T, p.inverse + h * T, delta, scores, grads);
      multiply(n, D, T, {grads, 1, n}, {scaled, D, 1}, dk + first * D, D, of_queries, query_leaves);
      multiply(n, D, T, {scores, 1, n}, {grad, p.out_token, 1}, dv + first * D, D, of_queries, query_leaves);
      multiply(T, D, n, {grads, n, 1}, {k, p.k_token, 1}, nodes + top * T * D, D, b + 1 < blocks ? of_keys : of_last,
               parts(n, leaf));
      ++top;
      for (int merges = merges_after(b, blocks); merges > 0; --merges, --top)
        add(nodes + (top - 2) * T * D, nodes + (top - 1) * T * D, nodes + (top - 2) * T * D, T * D);
    }
    for (int merges = merges_after(h, back.heads); merges > 0; --merges, --key_top) {
      float* const left = key_nodes + (key_top - 2) * 2 * S * D;
      add(left, left + 2 * S * D, left, 2 * S * D);
    }
    for (Index t = 0; t < T; ++t)
      each(D, [&](Index i, Index left) {
        const V sum = blocks > 0 ? some(nodes + t * D + i, left) : V{};
        some(back.dq + h * back.dq_head + t * back.dq_token + i, sum * set(p.scale) + V{}, left);
      });
  }
  for (Index s = 0; s < S; ++s)
    each(D, [&](Index i, Index left) {
      some(back.dk + s * back.dk_token + i, some(key_nodes + s * D + i, left) + V{}, left);
      some(back.dv + s * back.dv_token + i, some(key_nodes + (S + s) * D + i, left) + V{}, left);
    });
}

}  // namespace ditto_exact::DITTO_EXACT_NS
