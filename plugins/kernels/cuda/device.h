// What kernels are written with, and all that they include of CUDA: one source for nvcc and for g++.
//
// Under nvcc it is CUDA's own. Else threads of a block are what "emulated.h" makes of them (tests/cuda_emulated), and
// barriers and exchanges are where one waits for another. Every function on numbers is one operation of IEEE
// arithmetic, to nearest, denormals kept, so that both give the same bits; compiled with -fmad=false and
// -ffp-contract=off the only fused multiply-adds are those written `fused`.
//
// Exchanges carry numbers and order nothing else: memory that one thread writes and another reads needs a barrier.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define DITTO_DEVICE __device__ __forceinline__
#define DITTO_KERNEL(threads) __global__ void __launch_bounds__(threads)
#else
#include <cmath>

#include "emulated.h"

#define DITTO_DEVICE inline __attribute__((always_inline))  // as nvcc does: none is shared between sources
#define DITTO_KERNEL(threads) void
#endif

namespace ditto_cuda {

using Index = std::int64_t;
using Stream = void*;  // a cudaStream_t; null: the default one
using Status = int;    // a cudaError_t; 0: launched

struct Grid {
  Index x, y = 1;
};

#if defined(__CUDACC__)

extern __shared__ __align__(16) char block_memory[];

DITTO_DEVICE char* shared_memory() { return block_memory; }  // the block's, as many bytes as it was launched with
DITTO_DEVICE int thread_at() { return static_cast<int>(threadIdx.x); }
DITTO_DEVICE int thread_count() { return static_cast<int>(blockDim.x); }
DITTO_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
DITTO_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
DITTO_DEVICE int blocks_x() { return static_cast<int>(gridDim.x); }
DITTO_DEVICE void block_barrier() { __syncthreads(); }
// Of all lanes of a warp: the number of the lane whose place differs in the bits of `mask`; who says yes, a bit each.
template <class T>
DITTO_DEVICE T exchange_xor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
DITTO_DEVICE double exchange_xor_wide(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DITTO_DEVICE std::uint32_t ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }
DITTO_DEVICE int count_bits(std::uint32_t bits) { return __popc(bits); }

DITTO_DEVICE float root(float x) { return __fsqrt_rn(x); }
DITTO_DEVICE double root(double x) { return __dsqrt_rn(x); }
DITTO_DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
DITTO_DEVICE double quotient(double a, double b) { return __ddiv_rn(a, b); }
DITTO_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }  // a b + c, rounded once
DITTO_DEVICE std::uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
DITTO_DEVICE std::uint16_t to_fp16(float x) { return __half_as_ushort(__float2half_rn(x)); }
DITTO_DEVICE float from_fp16(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

constexpr std::size_t kAskedShared = 48 << 10;  // bytes beyond which a kernel must say that it takes so many

template <class... P, class... A>
Status launch(void (*kernel)(P...), Grid grid, int threads, std::size_t shared, Stream stream, A... given) {
  if (grid.x == 0 || grid.y == 0) return 0;
  if (shared > kAskedShared) {
    const auto refused =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (refused) return refused;
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  kernel<<<blocks, static_cast<unsigned>(threads), shared, static_cast<cudaStream_t>(stream)>>>(
      static_cast<P>(given)...);
  return cudaGetLastError();
}

#else

inline char* shared_memory() { return emulated::shared(); }
inline int thread_at() { return emulated::here().thread; }
inline int thread_count() { return emulated::here().threads; }
inline int block_x() { return emulated::here().block_x; }
inline int block_y() { return emulated::here().block_y; }
inline int blocks_x() { return emulated::here().blocks_x; }
inline void block_barrier() { emulated::barrier(); }
template <class T>
T exchange_xor(T x, int mask) {
  static_assert(sizeof(T) == 4);
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = emulated::exchange(bits, (emulated::here().thread & 31) ^ mask);
  std::memcpy(&x, &bits, 4);
  return x;
}
inline double exchange_xor_wide(double x, int mask) {
  std::uint32_t halves[2];
  std::memcpy(halves, &x, 8);
  for (auto& half : halves) half = exchange_xor(half, mask);
  std::memcpy(&x, halves, 8);
  return x;
}
inline std::uint32_t ballot(bool yes) { return emulated::ballot(yes); }
inline int count_bits(std::uint32_t bits) { return __builtin_popcount(bits); }

inline float root(float x) { return std::sqrt(x); }
inline double root(double x) { return std::sqrt(x); }
inline float quotient(float a, float b) { return a / b; }
inline double quotient(double a, double b) { return a / b; }
inline float fused(float a, float b, float c) { return std::fmaf(a, b, c); }
inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return x != x ? 0x7fff : static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // as a GPU's nan
}
inline std::uint16_t to_fp16(float x) {
  const auto half = static_cast<_Float16>(x);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return x != x ? 0x7fff : bits;
}
inline float from_fp16(std::uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}

template <class... P, class... A>
Status launch(void (*kernel)(P...), Grid grid, int threads, std::size_t shared, Stream stream, A... given) {
  emulated::run({grid.x, grid.y, threads, shared, stream}, [&] { kernel(static_cast<P>(given)...); });
  return 0;
}

#endif

DITTO_DEVICE float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}
DITTO_DEVICE float as_float(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
DITTO_DEVICE std::uint32_t as_bits(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

}  // namespace ditto_cuda
