// Tables of positions and features of times: the same bits on every machine (math/elementary.h).
//
// Legend: B samples, T tokens of a grid, D width, N heads, K a head's width.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include <torch/types.h>

#include <ditto/stream.h>
#include <ditto/visibility.h>

namespace ditto {

class Context;
class SentAhead;  // upload.h

// How many pairs of a head turn with the frame, the row and the column.
struct RotaryPairs {
  int64_t frames, rows, columns;
};
// Rotary positions of a grid (RoFormer, arXiv:2104.09864), [T, K]: the cosines of K / 2 angles, then their sines. Pair
// i of an axis's n turns by place * base^(-i / n), an fp32 number. double.
DITTO_API torch::Tensor rotary_table(const Grid& grid, const RotaryPairs& pairs, double base = 10000);
// K / 2 pairs shared equally among frames (where there are several), rows and columns; the last get what is left.
DITTO_API torch::Tensor rotary_table(const Grid& grid, int64_t head_width, double base = 10000);
// Turns pairs (x[i], x[i + K/2]) of x [B, T, N, K].
DITTO_API torch::Tensor apply_rotary(const torch::Tensor& x_BTNK, const torch::Tensor& table_TK);

// Sinusoidal features of a scalar, [B] -> [B, 2 * half]: cos first, then sin; frequency i is 10000^(-i / divisor).
// Computed and returned in fp32, every exponential, cosine and sine as the nearest number.
DITTO_API torch::Tensor timestep_features(const torch::Tensor& t_B, int64_t half, double divisor);
// The same of times in the host's memory, on the context's device, which they may have been sent to already: layers'
// way.
DITTO_API torch::Tensor timestep_features(const torch::Tensor& t_B, int64_t half, double divisor, Context& ctx);
// For whoever makes times: that they will be asked for.
DITTO_API void add_timestep_features(SentAhead& ahead, const torch::Tensor& t_B, int64_t half, double divisor);

// Fixed sine-cosine positions 0 … n - 1, [n, D]: sin and then cos of place * 10000^(-i / (D/2)). double.
DITTO_API torch::Tensor sincos_positions(int64_t n, int64_t width);
// Of a grid, [T, D]: the first D/2 numbers tell the column, the rest the row.
DITTO_API torch::Tensor sincos_positions(const Grid& grid, int64_t width);
// Sine-cosine positions [rows x columns, D]: the first D/2 numbers tell the column's place, the rest the row's; of each
// sin and then cos of place * 10000^(-i / (D/4)), as sincos_positions of a grid, whose places are 0, 1, ….
DITTO_API torch::Tensor sincos_positions(const std::vector<double>& rows, const std::vector<double>& columns,
                                         int64_t width);

// Of a grid in the middle of a square table of `side` x `side` places, in which `base` places are 0 … base - 1 and a
// larger side lies closer: place i is i / (side / base), an fp32 number (Stable Diffusion 3, arXiv:2403.03206, 5.3.2).
// Throws Error(shape) for a grid that is larger than the table.
DITTO_API torch::Tensor centred_sincos_positions(const Grid& grid, int64_t side, int64_t base, int64_t width);

// A table that a grid alone decides, where a model multiplies: on a GPU it is made, and sent, once for each grid and
// dtype, and elsewhere made anew each time. A member of the model, one for each table.
class DITTO_API GridTable {
 public:
  // make(), with the options' dtype and device.
  torch::Tensor of(const Grid& grid, const torch::TensorOptions& options, const std::function<torch::Tensor()>& make);

 private:
  std::map<std::tuple<int64_t, int64_t, int64_t, at::ScalarType>, torch::Tensor> sent_;
};

// rotary_table with angles in double, as Flux and Wan make them: it rounds them to fp32.
DITTO_API torch::Tensor rotary_table_in_double(const Grid& grid, const RotaryPairs& pairs, double base = 10000);

}  // namespace ditto
