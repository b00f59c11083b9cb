// Tables of positions and features of time, as W. Peebles and S. Xie have them, 2023 (arXiv:2212.09748): single
// operations of IEEE arithmetic, so that every machine has the same.
#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/math/elementary.h>
#include <ditto/nn/tables.h>
#include <ditto/upload.h>

namespace ditto {

using torch::Tensor;

namespace {

// base^(-i / n) for i = 0 … n - 1.
std::vector<double> frequencies(int64_t n, double base) {
  std::vector<double> list;
  const double log = elementary::log(base);
  for (int64_t i = 0; i < n; ++i)
    list.push_back(elementary::exp(-log * static_cast<double>(i) / static_cast<double>(n)));
  return list;
}

// `angle` of a place and a frequency.
template <class Angle>
Tensor rotary_of(const Grid& grid, const RotaryPairs& pairs, double base, const Angle& angle) {
  const int64_t each = pairs.frames + pairs.rows + pairs.columns;
  const auto table = torch::empty({grid.tokens(), 2 * each}, torch::kDouble);
  const auto by_frame = frequencies(pairs.frames, base), by_row = frequencies(pairs.rows, base),
             by_column = frequencies(pairs.columns, base);
  auto* to = table.mutable_data_ptr<double>();
  const auto turn = [&](const std::vector<double>& frequency, int64_t place) {
    for (const double f : frequency) {
      const auto [cos, sin] = elementary::cos_sin(angle(static_cast<double>(place) * f));
      to[0] = cos, to[each] = sin;
      ++to;
    }
  };
  for (int64_t t = 0; t < grid.tokens(); ++t, to += each) {
    turn(by_frame, t / (grid.rows * grid.columns));
    turn(by_row, t / grid.columns % grid.rows);
    turn(by_column, t % grid.columns);
  }
  return table;
}

}  // namespace

// Rounded as published tables are.
Tensor rotary_table(const Grid& grid, const RotaryPairs& pairs, double base) {
  return rotary_of(grid, pairs, base, [](double angle) { return static_cast<float>(angle); });
}

Tensor rotary_table_in_double(const Grid& grid, const RotaryPairs& pairs, double base) {
  return rotary_of(grid, pairs, base, [](double angle) { return angle; });
}

Tensor rotary_table(const Grid& grid, int64_t head_width, double base) {
  const int64_t pairs = head_width / 2, axes = grid.frames > 1 ? 3 : 2, share = pairs / axes;
  return rotary_table(grid, {axes == 3 ? share : 0, share, pairs - (axes - 1) * share}, base);
}

Tensor apply_rotary(const Tensor& x_BTNK, const Tensor& table_TK) {
  const auto wide = x_BTNK.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto x = x_BTNK.to(wide).chunk(2, -1);
  const auto table = table_TK.to(wide).unsqueeze(-2).chunk(2, -1);  // T 1 K/2, or of each sample B T 1 K/2
  const auto &cos = table[0], &sin = table[1];
  return torch::cat({x[0] * cos - x[1] * sin, x[1] * cos + x[0] * sin}, -1).to(x_BTNK.scalar_type());
}

namespace {

// In single precision as in the published code, whose rounding of large angles is part of the function learned. The
// first factor is -ln 10000.
std::vector<float> frequencies_of_features(int64_t half, double divisor) {
  std::vector<float> frequency;
  for (int64_t i = 0; i < half; ++i)
    frequency.push_back(static_cast<float>(
        elementary::exp(static_cast<float>(i) * static_cast<float>(-9.210340371976184) / static_cast<float>(divisor))));
  return frequency;
}

// Of numbers of the data, which are on the device: the host does not wait for them. Of double precision rounded once.
Tensor features_there(const Tensor& t_B, int64_t half, double divisor) {
  const auto frequency = uploaded(torch::tensor(frequencies_of_features(half, divisor)), t_B.device());
  const auto angles = (t_B.to(torch::kFloat).unsqueeze(1) * frequency).to(torch::kDouble);
  return torch::cat({angles.cos(), angles.sin()}, 1).to(torch::kFloat);
}

}  // namespace

Tensor timestep_features(const Tensor& t_B, int64_t half, double divisor) {
  if (t_B.is_meta()) return torch::empty({t_B.size(0), 2 * half}, t_B.options().dtype(torch::kFloat));
  const auto t = t_B.to(torch::kCPU, torch::kFloat).contiguous();
  const auto features = torch::empty({t.size(0), 2 * half}, torch::kFloat);
  const auto frequency = frequencies_of_features(half, divisor);
  auto* to = features.mutable_data_ptr<float>();
  for (int64_t b = 0; b < t.size(0); ++b, to += half)
    for (const float f : frequency) {
      const auto [cos, sin] = elementary::cos_sin(t.const_data_ptr<float>()[b] * f);
      to[0] = static_cast<float>(cos), to[half] = static_cast<float>(sin);
      ++to;
    }
  return uploaded(features, t_B.device());
}

namespace {

std::string name_of_features(int64_t half, double divisor) {
  return "features of " + std::to_string(half) + " by " + std::to_string(divisor);
}

}  // namespace

void add_timestep_features(SentAhead& ahead, const Tensor& t_B, int64_t half, double divisor) {
  const auto t = t_B.flatten().to(torch::kFloat);
  ahead.add(name_of_features(half, divisor), t, timestep_features(t, half, divisor));
}

Tensor timestep_features(const Tensor& t_B, int64_t half, double divisor, Context& ctx) {
  const bool is_there = !t_B.is_cpu() && !t_B.is_meta();
  if (is_there && !ctx.ops.table().exact()) return features_there(t_B, half, divisor);
  if (ctx.device.is_cpu() || !t_B.is_cpu()) return uploaded(timestep_features(t_B, half, divisor), ctx.device);
  ctx.time_features.emplace(half, divisor);
  const auto* ahead = SentAhead::here();
  const auto sent = ahead ? ahead->find(name_of_features(half, divisor), t_B.to(torch::kFloat)) : Tensor();
  return sent.defined() ? sent : uploaded(timestep_features(t_B, half, divisor), ctx.device);
}

namespace {

Tensor sincos_of(const std::vector<double>& places, int64_t width) {
  const auto table = torch::empty({static_cast<int64_t>(places.size()), width}, torch::kDouble);
  const auto frequency = frequencies(width / 2, 10000);
  auto* to = table.mutable_data_ptr<double>();
  for (const double place : places) {
    for (const double f : frequency) {
      const auto [cos, sin] = elementary::cos_sin(place * f);
      to[0] = sin, to[width / 2] = cos;
      ++to;
    }
    to += width / 2;
  }
  return table;
}

std::vector<double> first_places(int64_t n) {
  std::vector<double> places(static_cast<size_t>(n));
  std::iota(places.begin(), places.end(), 0.0);
  return places;
}

}  // namespace

Tensor sincos_positions(int64_t n, int64_t width) { return sincos_of(first_places(n), width); }

Tensor sincos_positions(const Grid& grid, int64_t width) {
  return sincos_positions(first_places(grid.rows), first_places(grid.columns), width);
}

Tensor sincos_positions(const std::vector<double>& rows, const std::vector<double>& columns, int64_t width) {
  const auto down = static_cast<int64_t>(rows.size()), across = static_cast<int64_t>(columns.size());
  const auto column = sincos_of(columns, width / 2).unsqueeze(0).expand({down, -1, -1});
  const auto row = sincos_of(rows, width / 2).unsqueeze(1).expand({-1, across, -1});
  return torch::cat({column, row}, -1).flatten(0, 1);
}

Tensor centred_sincos_positions(const Grid& grid, int64_t side, int64_t base, int64_t width) {
  if (grid.rows > side || grid.columns > side)
    throw Error(ErrorKind::shape, "table of positions",
                "has " + std::to_string(side) + " x " + std::to_string(side) + " places, and a picture has " +
                    std::to_string(grid.rows) + " x " + std::to_string(grid.columns) + " patches",
                "use smaller pictures, or a larger table");
  const auto middle = [&](int64_t n) {
    const auto apart = static_cast<float>(static_cast<double>(side) / static_cast<double>(base));
    std::vector<double> places;
    for (int64_t i = (side - n) / 2; static_cast<int64_t>(places.size()) < n; ++i)
      places.push_back(static_cast<float>(i) / apart);
    return places;
  };
  return sincos_positions(middle(grid.rows), middle(grid.columns), width);
}

Tensor GridTable::of(const Grid& grid, const torch::TensorOptions& options, const std::function<Tensor()>& make) {
  const auto device = options.device();
  if (device.is_cpu() || device.is_meta()) return make().to(options);
  const auto dtype = options.dtype().toScalarType();
  // Of data of many sizes: the memory of a few hundred small tables.
  constexpr size_t kMostKept = 256;
  if (sent_.size() >= kMostKept) sent_.clear();
  auto& table = sent_[{grid.frames, grid.rows, grid.columns, dtype}];
  if (!table.defined()) table = uploaded(make().to(dtype), device);
  return table;
}

}  // namespace ditto
