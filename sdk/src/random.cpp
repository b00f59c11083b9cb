// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011.
#include <ditto/random.h>

#include <bit>
#include <cmath>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

namespace ditto {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements a thread takes at least

struct Pair {
  double first, second;
};

// Natural logarithm of a number in (0, 1): mantissa around 1, then the series of atanh. Only +, -, *, / of doubles, so
// that every IEEE device gives the same bits.
double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return 2 * s * sum + static_cast<double>(exponent) * 0.6931471805599453;
}

// cos and sin of 2 pi u, u in [0, 1): the nearest quarter turn, then Taylor polynomials on [-pi/4, pi/4].
Pair turn(double u) {
  const auto quarter = static_cast<int>(4 * u + 0.5);
  const double r = (4 * u - quarter) * 1.5707963267948966, z = r * r;
  double c = 1.0 / 20922789888000.0, s = -1.0 / 1307674368000.0;
  constexpr double cosines[] = {
      -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0};
  constexpr double sines[] = {
      1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0};
  for (const double a : cosines) c = c * z + a;
  for (const double a : sines) s = s * z + a;
  s *= r;
  switch (quarter & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

double unit(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

std::array<double, 4> normals(const std::array<std::uint32_t, 4>& bits) {
  std::array<double, 4> out{};
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * natural_log(unit(bits[2 * pair])));
    const Pair p = turn(unit(bits[2 * pair + 1]));
    out[2 * pair] = radius * p.first;
    out[2 * pair + 1] = radius * p.second;
  }
  return out;
}

std::array<double, 4> uniforms(const std::array<std::uint32_t, 4>& bits) {
  return {unit(bits[0]), unit(bits[1]), unit(bits[2]), unit(bits[3])};
}

// splitmix64's finaliser: spreads seed and purpose over the key.
std::array<std::uint32_t, 2> key_of(std::uint64_t seed, Purpose purpose) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15ull * (static_cast<std::uint64_t>(purpose) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
}

template <class Four>
torch::Tensor draw(std::uint64_t seed, Purpose purpose, std::span<const int64_t> ids, at::IntArrayRef shape,
                   at::ScalarType dtype, std::uint32_t series, Four four) {
  int64_t each = 1;
  std::vector<int64_t> full{static_cast<int64_t>(ids.size())};
  for (const int64_t n : shape) each *= n, full.push_back(n);
  auto out = torch::empty(full, torch::kDouble);
  auto* data = out.data_ptr<double>();
  const auto key = key_of(seed, purpose);
  const int64_t blocks = (each + 3) / 4;
  at::parallel_for(0, static_cast<int64_t>(ids.size()) * blocks, kGrain / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / blocks, block = i % blocks;
      const auto id = static_cast<std::uint64_t>(ids[static_cast<size_t>(row)]);
      const auto values = four(philox({static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32),
                                       static_cast<std::uint32_t>(block), series},
                                      key));
      double* to = data + row * each + 4 * block;
      for (int64_t k = 0; k < std::min<int64_t>(4, each - 4 * block); ++k) to[k] = values[static_cast<size_t>(k)];
    }
  });
  return out.to(dtype);
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

torch::Tensor Random::uniform(Purpose purpose, std::span<const int64_t> ids, at::IntArrayRef shape,
                              at::ScalarType dtype, std::uint32_t series) const {
  return draw(seed_, purpose, ids, shape, dtype, series, uniforms);
}

torch::Tensor Random::normal(Purpose purpose, std::span<const int64_t> ids, at::IntArrayRef shape, at::ScalarType dtype,
                             std::uint32_t series) const {
  return draw(seed_, purpose, ids, shape, dtype, series, normals);
}

}  // namespace ditto
