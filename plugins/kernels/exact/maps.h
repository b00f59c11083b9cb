// What is computed of maps number by number, and sums over their places. Compiled once for each instruction set.
#pragma once

#include "product.h"
#include "rows.h"

namespace ditto_exact::DITTO_EXACT_NS {

inline void store16(float* p, const Lanes& l, Index left) {
  for (int j = 0; j < 16 / W && j * W < left; ++j) some(p + j * W, l.v[j], left - j * W);
}

// The tree over so many numbers, which come in order.
class Tree {
 public:
  explicit Tree(Index count) : count_(count) {}
  void add(float x) {
    for (int merges = merges_after(at_++, count_); merges > 0; --merges) x = open_[--top_] + x;
    open_[top_++] = x;
  }
  float sum() const { return top_ > 0 ? open_[0] : 0.0f; }

 private:
  const Index count_;
  Index at_ = 0;
  int top_ = 0;
  float open_[kMostOpen];
};

// What a channel's numbers are multiplied by and what is added, one after another.
struct Channel {
  V mean, rstd, weight, bias, scale, shift;
  bool modulated, silu;
  V normal(V x) const { return (x - mean) * rstd; }
  V z(V n) const {
    const V y = fma(n, weight, bias);
    return modulated ? y * scale + shift : y;
  }
  static V sigmoid(V z) { return set(1.0f) / (set(1.0f) + exp(z * set(-1.0f))); }
  V y(V x) const {
    const V a = z(normal(x));
    return silu ? a / (set(1.0f) + exp(a * set(-1.0f))) : a;
  }
  V grad_of_z(V n, V grad) const {
    if (!silu) return grad;
    const V a = z(n), s = sigmoid(a);
    return grad * fma(a * (set(1.0f) - s), s, s);
  }
};
// Channel c of a sample's group, the at-th of all samples'.
inline Channel channel_of(const GroupNorm& p, Index at, Index c) {
  const Index of_sample = at % p.groups * p.channels + c, row = at * p.channels + c;
  return {set(p.mean[at]),
          set(p.rstd[at]),
          set(p.weight[of_sample]),
          set(p.bias[of_sample]),
          set(p.scale ? 1.0f + p.scale[row] : 1.0f),
          set(p.shift ? p.shift[row] : 0.0f),
          p.scale != nullptr,
          p.silu};
}

void group_norm(const GroupNorm& p, Index begin, Index end) {
  const Index P = p.places;
  const float count = static_cast<float>(p.channels * P);
  for (Index at = begin; at < end; ++at) {
    const float* const x = p.x + at * p.channels * P;
    Tree sum(p.channels), squares(p.channels);
    for (Index c = 0; c < p.channels; ++c) sum.add(total(x + c * P, P));
    p.mean[at] = sum.sum() / count;
    for (Index c = 0; c < p.channels; ++c) squares.add(squares_around(x + c * P, P, p.mean[at]));
    p.rstd[at] = 1.0f / __builtin_sqrtf(squares.sum() / count + p.eps);
    for (Index c = 0; c < p.channels; ++c) {
      const Channel channel = channel_of(p, at, c);
      const float* const from = x + c * P;
      float* const to = p.y + (at * p.channels + c) * P;
      each(P, [&](Index i, Index left) { some(to + i, channel.y(some(from + i, left)), left); });
    }
  }
}

// Sums over a channel's places of z's gradient g, and of g n, give all others: with k = w (1 + scale),
// dx = rstd (k g - mean(k g) - n mean(k g n)), means over a group.
void group_norm_back(const GroupNormBack& p, Index begin, Index end) {
  const GroupNorm& of = p.of;
  const Index P = of.places;
  const float count = static_cast<float>(of.channels * P);
  for (Index at = begin; at < end; ++at) {
    Tree sum(of.channels), dots(of.channels);
    for (Index c = 0; c < of.channels; ++c) {
      const Channel channel = channel_of(of, at, c);
      const Index row = at * of.channels + c, of_sample = at % of.groups * of.channels + c;
      const float *const x = of.x + row * P, *const grad = p.grad + row * P;
      float* const gz = p.dx + row * P;
      Lanes all = lanes(), products = lanes();
      for (Index i = 0; i < P; i += 16) {
        const Lanes a = load16(x + i, P - i);
        Lanes g = load16(grad + i, P - i);  // +0 where nothing is there
        for (int j = 0; j < 16 / W; ++j) {
          const V n = channel.normal(a.v[j]);
          g.v[j] = channel.grad_of_z(n, g.v[j]);
          all.v[j] = all.v[j] + g.v[j], products.v[j] = fma(g.v[j], n, products.v[j]);
        }
        store16(gz + i, g, P - i);
      }
      const float g = tree16(all), gn = tree16(products), w = of.weight[of_sample];
      const float more = of.scale ? 1.0f + of.scale[row] : 1.0f;
      p.dweight[row] = gn * more, p.dbias[row] = g * more;
      if (of.scale) p.dshift[row] = g, p.dscale[row] = gn * w + g * of.bias[of_sample];
      sum.add(p.dbias[row] * w), dots.add(p.dweight[row] * w);
    }
    const V mean = set(sum.sum() / count), dot = set(dots.sum() / count);
    for (Index c = 0; c < of.channels; ++c) {
      const Channel channel = channel_of(of, at, c);
      const float* const x = of.x + (at * of.channels + c) * P;
      float* const dx = p.dx + (at * of.channels + c) * P;
      each(P, [&](Index i, Index left) {
        V g = some(dx + i, left);
        if (channel.modulated) g = g * channel.scale;
        g = (g * channel.weight - mean) - channel.normal(some(x + i, left)) * dot;
        some(dx + i, g * channel.rstd, left);
      });
    }
  }
}

// W rows beside each other, whose numbers are turned so that those of one place make a vector.
void number_sums(const float* x, Index width, const Leaf* leaves, Index leaf_count, float* sums, Index begin,
                 Index end) {
  constexpr Index kAtOnce = 64;
  alignas(64) float turned[(kAtOnce + 1) * W];
  alignas(64) V open[kMostOpen];
  for (Index row = begin; row < end; row += W) {
    const Index here = least(W, end - row);
    Index top = 0, at = 0, first = 0, last = 0;  // `turned` has numbers [first, last)
    for (Index leaf = 0; leaf < leaf_count; ++leaf) {
      V sum{};
      for (; at < leaves[leaf].end; ++at) {
        if (at == last) {
          first = last, last = least(width, first + kAtOnce);
          pack_run({x + row * width + first, width, 1}, here, last - first, W, turned);
        }
        sum = sum + load(turned + (at - first) * W);
      }
      for (int merges = leaves[leaf].merges; merges > 0 && top > 0; --merges) sum = open[--top] + sum;
      open[top++] = sum;
    }
    some(sums + row, (top > 0 ? open[0] : V{}) + V{}, here);
  }
}

void add_number(const float* x, float a, float* y, Index n) {
  each(n, [&](Index i, Index left) { some(y + i, some(x + i, left) + set(a), left); });
}

void mix(const Mixture& p, Index begin, Index end) {
  for (Index row = begin; row < end; ++row) {
    const float* const x = p.x + row * p.from * p.inner;
    float* y = p.y + row * p.to * p.inner;
    for (Index j = 0; j < p.to; ++j, y += p.inner) {
      if (p.inner == 1) {
        V sum{};
        for (Index k = p.start[j]; k < p.start[j + 1]; ++k) sum = fma(set(p.weight[k]), set(x[p.place[k]]), sum);
        *y = sum[0];
        continue;
      }
      each(p.inner, [&](Index i, Index left) {
        V sum{};
        for (Index k = p.start[j]; k < p.start[j + 1]; ++k)
          sum = fma(set(p.weight[k]), some(x + p.place[k] * p.inner + i, left), sum);
        some(y + i, sum, left);
      });
    }
  }
}

}  // namespace ditto_exact::DITTO_EXACT_NS
