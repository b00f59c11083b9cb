// The products of a linear layer in bf16: y = x W^T + b, and the gradients of all three. Sums in fp32 of pairs of bf16
// numbers; what is written in bf16 is rounded once. Each call does a piece of the work, in which order and on which
// thread does not matter: no sum is shared.
//
// Legend: M rows, K numbers that come in, N that come out, W [N, K]. K and N are even.
#pragma once

#include <cstdint>

namespace ditto_cpu {

// Factors are packed into panels of words, each of two numbers that follow one another in the sum:
// [panels][pairs][width].
constexpr std::int64_t kPanel = 32;                     // columns of a factor whose rows are vectors
constexpr std::int64_t kTile = 12;                      // rows of one whose words are single
constexpr std::int64_t kPairs = 32;                     // of rows, in a block that is packed at once
constexpr std::int64_t kRows = 4 * kTile, kPanels = 8;  // of a piece of a product

constexpr std::int64_t panels(std::int64_t columns, std::int64_t width) { return (columns + width - 1) / width; }
// An odd number of pairs is from one panel to the next: caches have few places for lines at a power of two's distance.
constexpr std::int64_t apart(std::int64_t pairs) { return pairs | 1; }
constexpr std::int64_t packed(std::int64_t pairs, std::int64_t columns, std::int64_t width) {
  return panels(columns, width) * apart(pairs) * width;
}

// W as a factor of x W^T: panel `panel` of its rows, pairs along K.
void pack_for_outputs(const std::uint16_t* w_NK, std::int64_t N, std::int64_t K, std::int64_t panel,
                      std::uint32_t* words);
// Pairs of rows [2 * kPairs * block, …) of x [rows, columns], which may be an odd number, in panels of kPanel. `apart`:
// numbers from one row to the next.
struct ColumnsOfRows {
  const std::uint16_t* x;
  std::int64_t rows, columns, apart;
};
void pack_rows(const ColumnsOfRows& of, std::int64_t block, std::uint32_t* words);

// c [M, N] = a [M, 2 * pairs] times a packed factor [pairs, N]: rows [row, row + kRows), panels [panel, panel +
// kPanels).
struct RowProduct {
  const std::uint16_t* a;
  const std::uint32_t* factor;
  const std::uint16_t* bias;  // [N]; null: none
  std::uint16_t* c;
  std::uint16_t* gelu;  // GELU of c in its tanh form, where asked for; null: not asked for
  std::int64_t M, N, pairs;
};
void multiply(const RowProduct& product, std::int64_t row, std::int64_t panel);

// c [N, K] in fp32 = sum over pairs of rows of a packed [N] in panels of kRows and b packed [K] in panels of kPanel:
// pieces as above. `apart`: numbers from one row of c to the next.
struct PairProduct {
  const std::uint32_t *a, *b;
  float* c;
  std::int64_t N, K, pairs, apart;
};
void multiply(const PairProduct& product, std::int64_t row, std::int64_t panel);

// GELU in its tanh form, as above: the same bits of the same numbers.
void gelu(const std::uint16_t* x, std::uint16_t* y, std::int64_t count);

// Of y's gradient [M, N], rows [2 * kPairs * block, …) in one pass: where `h` is given, what GELU was given, the
// gradient of that, instead of it in what follows, and into `dh`, which begins with row `first`; sums over the rows;
// and its pairs of rows.
struct GradientRows {
  const std::uint16_t *grad, *h;
  std::uint16_t* dh;
  std::int64_t first, M, N;
  float* sums;           // [blocks, N]
  std::uint32_t* words;  // packed in panels of kRows; null: not asked for
};
void gradient_rows(const GradientRows& rows, std::int64_t block);

}  // namespace ditto_cpu
