// What is kept of a tensor's numbers: enough to say whether two tensors have the same bits, and about how far they are
// apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <torch/types.h>

namespace ditto::diff {

// Prints of the parts of a tensor add up to the print of the whole, whoever has made them and in any order (`squares`
// and `shadows` up to rounding in fp64). Of terms of a sum `shadows` add up to those of the sum, and nothing else does.
struct Print {
  static constexpr size_t kShadows = 8;
  uint64_t hash = 0;   // of bits and places, modulo 2^64; every nan is the same
  double squares = 0;  // sum of the numbers' squares
  // Sums with signs drawn by place: their squares' mean estimates the sum of squares, also that of a difference
  // (D. Achlioptas, 2003, doi:10.1016/S0022-0000(03)00025-4).
  std::array<double, kShadows> shadows{};

  bool is_zero() const { return squares == 0; }
  Print& operator+=(const Print& other);
};

// How long the difference is, over the longer of both, or over a length whose square is `least` where that is more; 0
// for the same bits, infinite where a number is not finite. An estimate, good to a factor of two.
double relative_difference(const Print& a, const Print& b, double least = 0);

// Of a block of a tensor of the shape `whole` that begins at `start`. Any dtype but complex ones, any device.
Print print_of(const torch::Tensor& block, at::IntArrayRef whole, at::IntArrayRef start);

}  // namespace ditto::diff
