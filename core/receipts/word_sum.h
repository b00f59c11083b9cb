// The inner sum of the tensor hash (tensor_hash.h), of one block's words: no LibTorch here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ditto {

inline constexpr std::size_t kHashLanes = 2;
inline constexpr std::size_t kHashBlock = 1024;  // words

// The n-th number of splitmix64 from `seed`, n from 0 (G. Steele et al., "Fast splittable pseudorandom number
// generators", 2014).
constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Adds to `sums`, for each lane, the products of `count` words that stand from place `first` on in their block with the
// factors of their places, modulo 2^64. first + count <= kHashBlock.
void add_words(const std::uint32_t* words, std::size_t first, std::size_t count,
               std::array<std::uint64_t, kHashLanes>& sums);

}  // namespace ditto
