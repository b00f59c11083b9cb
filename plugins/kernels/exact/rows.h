// What is computed number by number, and sums along and over rows. Compiled once for each instruction set.
#pragma once

#include "vector.h"

namespace ditto_exact::DITTO_EXACT_NS {

// GELU, tanh form: x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kRoot2OverPi = 0.7978845608f;
inline V gate_of(V x) {
  const V u = x * fma(x * x, set(kRoot2OverPi * 0.044715f), set(kRoot2OverPi));
  return set(1.0f) / (set(1.0f) + exp(u * set(-2.0f)));
}
void gelu(const float* x, float* y, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left);
    some(y + i, a * gate_of(a), left);
  });
}
void gelu_back(const float* x, const float* grad, float* dx, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left), s = gate_of(a);
    const V du = fma(a * a, set(3 * kRoot2OverPi * 0.044715f), set(kRoot2OverPi));
    const V slope = fma(a * s * (set(1.0f) - s), set(2.0f) * du, s);
    some(dx + i, some(grad + i, left) * slope, left);
  });
}

// The normal distribution's P(X < x), by which GELU of the error function weighs: e^(-a^2/2) g(a) for x = -a, and 1
// less that for x = a. g, the Mills ratio over sqrt(2 pi), is t = 1 / (1 + 0.35 a) times a polynomial in t, fitted on 0
// <= a
// <= 16 to a relative error of 4e-8; with rounding, below 4e-7 in the tail too. e^(-a^2/2) stays 0 beyond.
constexpr float kMills[] = {0.14406748f, -0.255916f,  0.15940946f, -0.02327554f,
                            0.10557991f, 0.11981417f, 0.13986452f, 0.13962124f};
struct Normal {
  V below, e;  // P(X < x); e^(-x^2/2)
};
inline Normal normal(V x) {
  const V zero{}, size = x < zero ? zero - x : x;
  const V a = size > set(16.0f) ? set(16.0f) : size;
  const V square = a * a, rest = fma(a, a, zero - square);  // both together are the square
  V e = exp(square * set(-0.5f));
  e = fma(e, rest * set(-0.5f), e);
  const V t = set(1.0f) / fma(a, set(0.35f), set(1.0f));
  V p = set(-0.029165268f);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) p = fma(p, t, set(kMills[i]));
  const V tail = e * (t * p);
  return {x < zero ? tail : set(1.0f) - tail, e};
}
void gelu_erf(const float* x, float* y, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left);
    some(y + i, a * normal(a).below, left);
  });
}
void gelu_erf_back(const float* x, const float* grad, float* dx, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left);
    const Normal d = normal(a);
    some(dx + i, some(grad + i, left) * fma(a * d.e, set(0.39894228f), d.below), left);
  });
}

void silu(const float* x, float* y, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left);
    some(y + i, a / (set(1.0f) + exp(a * set(-1.0f))), left);
  });
}
void silu_back(const float* x, const float* grad, float* dx, Index n) {
  each(n, [&](Index i, Index left) {
    const V a = some(x + i, left), s = set(1.0f) / (set(1.0f) + exp(a * set(-1.0f)));
    some(dx + i, some(grad + i, left) * fma(a * (set(1.0f) - s), s, s), left);
  });
}

// Adds to sixteen lanes what `term(place, numbers left)` gives as Lanes, +0 where nothing is there.
template <class F>
inline float along(Index width, F add) {
  Lanes sum = lanes();
  for (Index i = 0; i < width; i += 16) add(sum, i, width - i);
  return tree16(sum);
}

inline float squares_around(const float* x, Index width, float mean) {
  const V means = set(mean);
  return along(width, [&](Lanes& sum, Index i, Index left) {
    alignas(64) float rest[16] = {};
    Lanes a;
    if (left < 16) {
      for (Index l = 0; l < left; ++l) rest[l] = x[i + l] - mean;
      a = load16(rest, 16);
    } else {
      a = load16(x + i, 16);
      for (auto& v : a.v) v = v - means;
    }
    for (int j = 0; j < 16 / W; ++j) sum.v[j] = fma(a.v[j], a.v[j], sum.v[j]);
  });
}

void norm(const Norm& p, Index begin, Index end) {
  const Index D = p.width;
  const float count = static_cast<float>(D);
  for (Index r = begin; r < end; ++r) {
    const float *x = p.x + r * D, *w = p.weight ? p.weight + r / p.sharing * D : nullptr,
                *b = p.bias ? p.bias + r / p.sharing * D : nullptr;
    float mean = 0;
    if (p.mean)
      mean = along(D,
                   [&](Lanes& sum, Index i, Index left) {
                     const Lanes a = load16(x + i, left);
                     for (int j = 0; j < 16 / W; ++j) sum.v[j] = sum.v[j] + a.v[j];
                   }) /
             count;
    const V means = set(mean);
    const float squares = squares_around(x, D, mean);
    const float rstd = 1.0f / __builtin_sqrtf(squares / count + p.eps);
    if (p.mean) p.mean[r] = mean;
    p.rstd[r] = rstd;
    const V rstds = set(rstd), plus = set(p.plus);
    each(D, [&](Index i, Index left) {
      V n = (some(x + i, left) - means) * rstds;
      if (w) {
        const V weight = p.plus == 0 ? some(w + i, left) : plus + some(w + i, left);
        n = b ? fma(n, weight, some(b + i, left)) : n * weight;
      }
      some(p.y + r * D + i, n, left);
    });
  }
}

// With g = grad w: dx = rstd (g - mean(g) - n mean(g n)); of a root mean square without mean(g).
void norm_back(const NormBack& p, Index begin, Index end) {
  const Index D = p.width;
  const float count = static_cast<float>(D);
  for (Index r = begin; r < end; ++r) {
    const float *x = p.x + r * D, *grad = p.grad + r * D, *w = p.weight ? p.weight + r / p.sharing * D : nullptr;
    const V mean = set(p.mean ? p.mean[r] : 0.0f), rstd = set(p.rstd[r]), plus = set(p.plus);
    Lanes sums = lanes(), dots = lanes();
    for (Index i = 0; i < D; i += 16) {
      const Lanes a = load16(x + i, D - i), g = load16(grad + i, D - i), weight = w ? load16(w + i, D - i) : lanes();
      for (int j = 0; j < 16 / W; ++j) {
        const V d = w ? g.v[j] * (plus + weight.v[j]) : g.v[j];  // 0 where nothing is there
        sums.v[j] = sums.v[j] + d, dots.v[j] = fma(d, (a.v[j] - mean) * rstd, dots.v[j]);
      }
    }
    const V sum = set(p.mean ? tree16(sums) / count : 0.0f), dot = set(tree16(dots) / count);
    each(D, [&](Index i, Index left) {
      const V n = (some(x + i, left) - mean) * rstd;
      const V d = w ? some(grad + i, left) * (plus + some(w + i, left)) : some(grad + i, left);
      some(p.dx + r * D + i, ((d - sum) - n * dot) * rstd, left);
    });
  }
}

// The chain of a leaf's rows [row, end), Count vectors of columns beside each other.
template <int Count>
inline void chain_of(const RowSum& p, Index row, Index end, Index at, Index left, V* sum) {
  const auto place = [&](const float* x, int u) { return some(x + row * p.width + at + u * W, left - u * W); };
#pragma GCC unroll 4
  for (int u = 0; u < Count; ++u) sum[u] = V{};
  for (; row < end; ++row) {
    if (!p.y) {
#pragma GCC unroll 4
      for (int u = 0; u < Count; ++u) sum[u] = sum[u] + place(p.x, u);
    } else if (!p.rstd) {
#pragma GCC unroll 4
      for (int u = 0; u < Count; ++u) sum[u] = fma(place(p.x, u), place(p.y, u), sum[u]);
    } else {
      const V mean = set(p.mean ? p.mean[row] : 0.0f), rstd = set(p.rstd[row]);
#pragma GCC unroll 4
      for (int u = 0; u < Count; ++u) sum[u] = fma(place(p.x, u), (place(p.y, u) - mean) * rstd, sum[u]);
    }
  }
}

// Leaf by leaf for a stretch of columns: rows lie far apart in memory, and a line of it should be read as a whole.
void row_sum(const RowSum& p, Index begin, Index end) {
  constexpr int kBeside = 4;
  constexpr Index kStretch = 16 * 16;
  alignas(64) float open[kMostOpen][kStretch];
  for (Index first = begin; first < end; first += kStretch) {
    const Index stretch = least(kStretch, end - first);
    Index top = 0, row = 0;
    for (Index leaf = 0; leaf < p.leaf_count; ++leaf) {
      const Index merges = least(p.leaves[leaf].merges, top);
      const auto node = [&](Index at, V* sum, int count) {
        for (int u = 0; u < count; ++u) {
          for (Index i = 1; i <= merges; ++i) sum[u] = load(open[top - i] + at + u * W) + sum[u];
          store(open[top - merges] + at + u * W, sum[u]);
        }
      };
      V sum[kBeside];
      Index i = 0;
      for (; i + kBeside * W <= stretch; i += kBeside * W) {
        chain_of<kBeside>(p, row, p.leaves[leaf].end, first + i, kBeside * W, sum);
        node(i, sum, kBeside);
      }
      for (; i < stretch; i += W) {
        chain_of<1>(p, row, p.leaves[leaf].end, first + i, stretch - i, sum);
        node(i, sum, 1);
      }
      top += 1 - merges, row = p.leaves[leaf].end;
    }
    each(stretch,
         [&](Index i, Index left) { some(p.sum + first + i, (top > 0 ? load(open[0] + i) : V{}) + V{}, left); });
  }
}

void gate(const float* x, const float* gate, const float* y, float* out, Index width) {
  each(width, [&](Index i, Index left) {
    const V a = some(gate + i, left), b = some(y + i, left);
    some(out + i, x ? fma(a, b, some(x + i, left)) : a * b, left);
  });
}
void add(const float* a, const float* b, float* sum, Index n) {
  each(n, [&](Index i, Index left) { some(sum + i, some(a + i, left) + some(b + i, left), left); });
}
void fill(float* x, float value, Index n) {
  each(n, [&](Index i, Index left) { some(x + i, set(value), left); });
}
float total(const float* x, Index n) {
  return along(n, [&](Lanes& sum, Index i, Index left) {
    const Lanes a = load16(x + i, left);
    for (int j = 0; j < 16 / W; ++j) sum.v[j] = sum.v[j] + a.v[j];
  });
}

void adamw(const AdamW& p, Index begin, Index end) {
  each(end - begin, [&](Index at, Index left) {
    const Index i = begin + at;
    const V g = some(p.g + i, left);
    const V m = fma(some(p.m + i, left), set(p.beta1), g * set(p.rest1));
    const V v = fma(some(p.v + i, left), set(p.beta2), g * g * set(p.rest2));
    some(p.m + i, m, left), some(p.v + i, v, left);
    const V way = m / (root(v) / set(p.root2) + set(p.eps));
    some(p.w + i, fma(way, set(-p.step), some(p.w + i, left) * set(p.decay)), left);
  });
}

}  // namespace ditto_exact::DITTO_EXACT_NS
