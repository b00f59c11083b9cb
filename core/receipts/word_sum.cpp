#include "core/receipts/word_sum.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ditto {

namespace {

// What is summed comes from memory, once: asked for ahead, it comes half as fast again.
constexpr std::size_t kAhead = 512;  // words

using Factors = std::array<std::array<std::uint32_t, kHashBlock>, kHashLanes>;

constexpr Factors make_factors() {
  Factors factors{};
  for (std::size_t lane = 0; lane < kHashLanes; ++lane)
    for (std::size_t place = 0; place < kHashBlock; ++place)
      factors[lane][place] = static_cast<std::uint32_t>(splitmix64(lane, place) >> 32);
  return factors;
}

constexpr Factors kFactors = make_factors();

struct Sums {
  std::uint64_t one = 0, other = 0;
};
using Sum = Sums (*)(const std::uint32_t* words, const std::uint32_t* factors, const std::uint32_t* others,
                     std::size_t count);

// Whole numbers: in any order they have one sum.
Sums sum_plain(const std::uint32_t* words, const std::uint32_t* factors, const std::uint32_t* others,
               std::size_t count) {
  constexpr std::size_t kCacheLine = 16, kRun = 64;
  Sums sums;
  for (std::size_t begin = 0; begin < count; begin += kRun) {
    const std::size_t end = std::min(begin + kRun, count);
    for (std::size_t line = 0; line < kRun; line += kCacheLine) __builtin_prefetch(words + begin + kAhead + line);
    for (std::size_t i = begin; i < end; ++i) {
      sums.one += std::uint64_t{words[i]} * factors[i];
      sums.other += std::uint64_t{words[i]} * others[i];
    }
  }
  return sums;
}

#if defined(__x86_64__)
// A multiplication takes the lower half of each 64 bits: the even words, then the odd ones.
__attribute__((target("avx2"))) Sums sum_avx2(const std::uint32_t* words, const std::uint32_t* factors,
                                              const std::uint32_t* others, std::size_t count) {
  constexpr std::size_t kWords = 8;
  __m256i one = _mm256_setzero_si256(), other = one;
  std::size_t i = 0;
  for (; i + kWords <= count; i += kWords) {
    __builtin_prefetch(words + i + kAhead);
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i)),
                  a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors + i)),
                  b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(others + i)), odd = _mm256_srli_epi64(x, 32);
    one = _mm256_add_epi64(one, _mm256_mul_epu32(x, a));
    other = _mm256_add_epi64(other, _mm256_mul_epu32(x, b));
    one = _mm256_add_epi64(one, _mm256_mul_epu32(odd, _mm256_srli_epi64(a, 32)));
    other = _mm256_add_epi64(other, _mm256_mul_epu32(odd, _mm256_srli_epi64(b, 32)));
  }
  alignas(32) std::uint64_t parts[2][kWords / 2];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts[0]), one);
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts[1]), other);
  Sums sums = sum_plain(words + i, factors + i, others + i, count - i);
  for (std::size_t k = 0; k < kWords / 2; ++k) sums.one += parts[0][k], sums.other += parts[1][k];
  return sums;
}

__attribute__((target("avx512f"))) Sums sum_avx512(const std::uint32_t* words, const std::uint32_t* factors,
                                                   const std::uint32_t* others, std::size_t count) {
  constexpr std::size_t kWords = 16;
  __m512i one = _mm512_setzero_si512(), other = one;
  std::size_t i = 0;
  for (; i + kWords <= count; i += kWords) {
    __builtin_prefetch(words + i + kAhead);
    const __m512i x = _mm512_loadu_si512(words + i), a = _mm512_loadu_si512(factors + i),
                  b = _mm512_loadu_si512(others + i), odd = _mm512_srli_epi64(x, 32);
    one = _mm512_add_epi64(one, _mm512_mul_epu32(x, a));
    other = _mm512_add_epi64(other, _mm512_mul_epu32(x, b));
    one = _mm512_add_epi64(one, _mm512_mul_epu32(odd, _mm512_srli_epi64(a, 32)));
    other = _mm512_add_epi64(other, _mm512_mul_epu32(odd, _mm512_srli_epi64(b, 32)));
  }
  alignas(64) std::uint64_t parts[2][kWords / 2];
  _mm512_store_si512(parts[0], one);
  _mm512_store_si512(parts[1], other);
  Sums sums = sum_plain(words + i, factors + i, others + i, count - i);
  for (std::size_t k = 0; k < kWords / 2; ++k) sums.one += parts[0][k], sums.other += parts[1][k];
  return sums;
}
#endif

Sum fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_plain;
}

}  // namespace

// Factors of 32 bits: a product of two of them is exact, so that a changed word always changes its own product.
void add_words(const std::uint32_t* words, std::size_t first, std::size_t count,
               std::array<std::uint64_t, kHashLanes>& sums) {
  static const Sum sum = fastest();
  const auto more = sum(words, kFactors[0].data() + first, kFactors[1].data() + first, count);
  sums[0] += more.one;
  sums[1] += more.other;
}

}  // namespace ditto
