#include "core/diff/print.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <torch/types.h>

namespace ditto::diff {

namespace {

// The finalizer of MurmurHash3 (public domain).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

template <class Number>
uint64_t bits_of(Number x) {
  if constexpr (std::is_same_v<Number, double>)
    return std::bit_cast<uint64_t>(std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x);
  else if constexpr (std::is_same_v<Number, float>)
    return std::bit_cast<uint32_t>(std::isnan(x) ? std::numeric_limits<float>::quiet_NaN() : x);
  else if constexpr (std::is_integral_v<Number>)
    return static_cast<uint64_t>(x);
  else  // half precision
    return std::isnan(static_cast<float>(x)) ? 0x7fffU : x.x;
}

template <class Number>
double value_of(Number x) {
  if constexpr (std::is_arithmetic_v<Number>)
    return static_cast<double>(x);
  else
    return static_cast<float>(x);
}

template <class Number>
void add_run(Print& print, const Number* x, int64_t count, int64_t place) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t drawn = mix(static_cast<uint64_t>(place + i) + 0x9e3779b97f4a7c15ULL);
    print.hash += mix(drawn ^ bits_of(x[i]));
    const double value = value_of(x[i]);
    print.squares += value * value;
    for (size_t s = 0; s < Print::kShadows; ++s) print.shadows[s] += (drawn >> (s + 8)) & 1 ? value : -value;
  }
}

// Runs along the last dim lie together in the whole, too.
template <class Number>
Print print_of_numbers(const torch::Tensor& x, at::IntArrayRef whole, at::IntArrayRef start) {
  Print print;
  const auto dims = static_cast<size_t>(x.dim());
  const int64_t run = dims == 0 ? 1 : x.size(-1), runs = run == 0 ? 0 : x.numel() / run;
  std::vector<int64_t> at(dims, 0);
  const auto* numbers = x.const_data_ptr<Number>();
  for (int64_t r = 0; r < runs; ++r, numbers += run) {
    int64_t place = 0;
    for (size_t d = 0; d < dims; ++d) place = place * whole[d] + start[d] + at[d];
    add_run(print, numbers, run, place);
    for (size_t d = dims - 1; d-- > 0 && dims > 1;) {
      if (++at[d] < x.size(static_cast<int64_t>(d))) break;
      at[d] = 0;
    }
  }
  return print;
}

}  // namespace

Print& Print::operator+=(const Print& other) {
  hash += other.hash;
  squares += other.squares;
  for (size_t s = 0; s < kShadows; ++s) shadows[s] += other.shadows[s];
  return *this;
}

double relative_difference(const Print& a, const Print& b, double least) {
  if (a.hash == b.hash) return 0;
  double sum = 0;
  for (size_t s = 0; s < Print::kShadows; ++s) sum += std::pow(a.shadows[s] - b.shadows[s], 2);
  const double longer = std::max({a.squares, b.squares, least}), difference = sum / Print::kShadows;
  if (!std::isfinite(longer) || !std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return longer == 0 ? 0 : std::sqrt(difference / longer);
}

Print print_of(const torch::Tensor& block, at::IntArrayRef whole, at::IntArrayRef start) {
  const torch::NoGradGuard no_grad;
  const auto x = block.detach().to(torch::kCPU).contiguous();
  switch (x.scalar_type()) {
    case torch::kFloat: return print_of_numbers<float>(x, whole, start);
    case torch::kDouble: return print_of_numbers<double>(x, whole, start);
    case torch::kBFloat16: return print_of_numbers<at::BFloat16>(x, whole, start);
    case torch::kHalf: return print_of_numbers<at::Half>(x, whole, start);
    default: return print_of_numbers<int64_t>(x.to(torch::kLong), whole, start);
  }
}

}  // namespace ditto::diff
