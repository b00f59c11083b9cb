// Random numbers without generators: every draw is a function of (run seed, purpose, sample id, element).
//
// Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). Key: run seed and purpose.
// Counter: the sample's id, the element's index in the sample's own tensor, and a series number. So a slice, a pack, a
// micro-batch, another rank or a second run of the same block draws the same numbers, and a checkpoint has nothing
// random to save.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// What a draw is for. The values are part of what a run means: never renumber. Series 0 of each is the host's, the
// SDK's and its plugins' (Denoising draws time, noise and condition_dropout; a validation's noise is `validation`); a
// plugin's further draws take the purpose that they are nearest to, and a series of their own, as a random constant:
// with equal purpose, series and id two draws are the same numbers.
enum class Purpose : std::uint32_t {
  initial_weights = 1,
  order = 2,
  time = 3,
  noise = 4,
  condition_dropout = 5,
  augmentation = 6,
  model_dropout = 7,
  start_noise = 8,    // where a sampler starts; its "sample id" is the picture's seed
  sampler_noise = 9,  // what a stochastic sampler adds; `series` is its step
  validation = 10,
  encoding = 11,  // of an autoencoder's distribution: a model's, or an encoder's, whose Random has a seed of its own
};

// A name as a number, the id or the seed of draws: FNV-1a, 64 bits.
DITTO_API std::uint64_t number_of(std::string_view name);

// The raw generator: ten rounds on a 128-bit counter.
DITTO_API std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

class DITTO_API Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  // [ids.size(), shape…]; row b depends on ids[b] alone. uniform: in (0, 1), a multiple of 2^-33 that is never 0 or 1.
  // normal: mean 0, variance 1, by Box and Muller in double precision with this library's own logarithm, sine and
  // cosine, then rounded to `dtype`. CPU; move it where it is needed.
  torch::Tensor uniform(Purpose purpose, std::span<const int64_t> ids, at::IntArrayRef shape,
                        at::ScalarType dtype = at::kDouble, std::uint32_t series = 0) const;
  torch::Tensor normal(Purpose purpose, std::span<const int64_t> ids, at::IntArrayRef shape,
                       at::ScalarType dtype = at::kFloat, std::uint32_t series = 0) const;

  // The block of the row of `id` that begins at `start` and has `size` numbers along each dim of `shape`: of what the
  // calls above draw for the whole row, drawn without the rest. double.
  torch::Tensor uniform_block(Purpose purpose, int64_t id, at::IntArrayRef shape, at::IntArrayRef start,
                              at::IntArrayRef size, std::uint32_t series = 0) const;
  torch::Tensor normal_block(Purpose purpose, int64_t id, at::IntArrayRef shape, at::IntArrayRef start,
                             at::IntArrayRef size, std::uint32_t series = 0) const;

  std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_;
};

}  // namespace ditto
