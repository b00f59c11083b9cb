// exp, log, powers, sine and cosine made of IEEE operations alone: the same bits on every machine. Those of LibTorch,
// and its linspace, are made by vector libraries that round in another way with each instruction set. Use these for
// what a training *is*: times, features of times, tables of positions, of a schedule, of an optimizer. What a network
// computes with its weights is LibTorch's.
//
// Double precision; errors stay below 3 units in the last place. Limits and NaN as in <cmath>.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto::elementary {

DITTO_API double exp(double x);
DITTO_API double expm1(double x);  // exp(x) - 1, with its digits near 0
DITTO_API double log(double x);
// base^n for n >= 0.
DITTO_API double power(double base, int64_t n);

struct CosSin {
  double cos, sin;
};
// Of an angle in radians. Beyond 2^20 quarter turns the angle is first taken modulo the double next to 2 pi, which
// costs a further 1e-16 of the angle.
DITTO_API CosSin cos_sin(double radians);
// Of an angle in turns, from 0.
DITTO_API CosSin cos_sin_of_turn(double turns);

// The x that a standard normal variable stays below with probability p, 0 < p < 1 (Wichura 1988, algorithm AS 241);
// relative error below 1e-15.
DITTO_API double normal_quantile(double p);

// `count` numbers from first to last, evenly.
DITTO_API std::vector<double> even_steps(double first, double last, int64_t count);

// f of each number, computed on the CPU: double, x's shape and device. f may be called from several threads.
DITTO_API torch::Tensor map(const torch::Tensor& x, const std::function<double(double)>& f);

}  // namespace ditto::elementary
