// Tables of positions at any places, beside those of tables.h: the same bits on every machine (elementary.h), double.
#pragma once

#include <vector>

#include <ditto/nn.h>

namespace ditto {

// Sine-cosine positions [rows x columns, D]: the first D/2 numbers tell the column's place, the rest the row's; of each
// sin and then cos of place * 10000^(-i / (D/4)), as sincos_positions of a grid, whose places are 0, 1, ….
DITTO_API torch::Tensor sincos_positions(const std::vector<double>& rows, const std::vector<double>& columns,
                                         int64_t width);

// Of a grid in the middle of a square table of `side` x `side` places, in which `base` places are 0 … base - 1 and a
// larger side lies closer: place i is i / (side / base), an fp32 number (Stable Diffusion 3, arXiv:2403.03206, 5.3.2).
// Throws Error(shape) for a grid that is larger than the table.
DITTO_API torch::Tensor centred_sincos_positions(const Grid& grid, int64_t side, int64_t base, int64_t width);

// rotary_table with angles in double, as Flux and Wan make them: tables.h's rounds them to fp32.
DITTO_API torch::Tensor rotary_table_in_double(const Grid& grid, const RotaryPairs& pairs, double base = 10000);

}  // namespace ditto
