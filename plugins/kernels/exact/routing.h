// What routers compute along rows, and sums of weighted rows. Compiled once for each instruction set.
#pragma once

#include "attention.h"

namespace ditto_exact::DITTO_EXACT_NS {

// e^(x - the largest) over its sum.
void softmax(const float* x, float* y, Index n) {
  float largest = -kInfinity;
  for (Index i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  const V from = set(largest);
  each(n, [&](Index i, Index left) { some(y + i, exp(some(x + i, left) - from), left); });
  const V all = set(total(y, n));
  each(n, [&](Index i, Index left) { some(y + i, some(y + i, left) / all, left); });
}

// y (grad - the sum of grad y)
void softmax_back(const float* y, const float* grad, float* dx, Index n) {
  const V all = set(dot(grad, y, n));
  each(n, [&](Index i, Index left) { some(dx + i, some(y + i, left) * (some(grad + i, left) - all), left); });
}

void add_scaled(float scale, const float* x, float* sum, Index n) {
  const V s = set(scale);
  each(n, [&](Index i, Index left) { some(sum + i, fma(s, some(x + i, left), some(sum + i, left)), left); });
}

}  // namespace ditto_exact::DITTO_EXACT_NS
