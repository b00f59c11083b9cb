// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011.
#include <ditto/math/random.h>

#include <cmath>
#include <vector>

#include <ATen/Functions.h>

#include <ditto/math/elementary.h>
#include <ditto/math/threads.h>

namespace ditto {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements a thread takes at least

double unit(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

std::array<double, 4> normals(const std::array<std::uint32_t, 4>& bits) {
  std::array<double, 4> out{};
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * elementary::log(unit(bits[2 * pair])));
    const auto [cos, sin] = elementary::cos_sin_of_turn(unit(bits[2 * pair + 1]));
    out[2 * pair] = radius * cos;
    out[2 * pair + 1] = radius * sin;
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
  in_threads(static_cast<int64_t>(ids.size()) * blocks, kGrain / 4, [&](int64_t begin, int64_t end) {
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

// Numbers [begin, begin + count) of one row.
template <class Four>
void draw_run(const std::array<std::uint32_t, 2>& key, int64_t id, std::uint32_t series, int64_t begin, int64_t count,
              double* to, Four four) {
  const auto bits = static_cast<std::uint64_t>(id);
  for (int64_t at = begin; at < begin + count;) {
    const int64_t block = at / 4, end = std::min(4 * (block + 1), begin + count);
    const auto values = four(philox({static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32),
                                     static_cast<std::uint32_t>(block), series},
                                    key));
    for (; at < end; ++at) *to++ = values[static_cast<size_t>(at - 4 * block)];
  }
}

template <class Four>
torch::Tensor draw_block(std::uint64_t seed, Purpose purpose, int64_t id, at::IntArrayRef shape, at::IntArrayRef start,
                         at::IntArrayRef size, std::uint32_t series, Four four) {
  const auto out = torch::empty(size, torch::kDouble);
  if (out.numel() == 0) return out;
  // Runs along the last dim; dims that are whole at the end make them longer.
  int64_t run = 1, first = 0;
  size_t dims = shape.size();
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  for (size_t d = 0; d < dims; ++d) first += start[d] * strides[d];
  while (dims > 0) {
    run *= size[--dims];
    if (size[dims] != shape[dims]) break;
  }
  auto* data = out.mutable_data_ptr<double>();
  const auto key = key_of(seed, purpose);
  in_threads(out.numel() / run, std::max<int64_t>(1, kGrain / run), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t at = first, rest = i;
      for (size_t d = dims; d-- > 0; rest /= size[d]) at += rest % size[d] * strides[d];
      draw_run(key, id, series, at, run, data + i * run, four);
    }
  });
  return out;
}

}  // namespace

std::uint64_t number_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return hash;
}

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

torch::Tensor Random::uniform_block(Purpose purpose, int64_t id, at::IntArrayRef shape, at::IntArrayRef start,
                                    at::IntArrayRef size, std::uint32_t series) const {
  return draw_block(seed_, purpose, id, shape, start, size, series, uniforms);
}

torch::Tensor Random::normal_block(Purpose purpose, int64_t id, at::IntArrayRef shape, at::IntArrayRef start,
                                   at::IntArrayRef size, std::uint32_t series) const {
  return draw_block(seed_, purpose, id, shape, start, size, series, normals);
}

}  // namespace ditto
