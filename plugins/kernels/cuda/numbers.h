// Numbers in a GPU's memory, and functions of them. All is computed in fp32.
#pragma once

#include "device.h"
#include "kernels.h"

namespace ditto_cuda {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
DITTO_DEVICE float wide(float x) { return x; }
DITTO_DEVICE float wide(Bf16 x) { return from_bf16(x.bits); }
DITTO_DEVICE float wide(Fp16 x) { return from_fp16(x.bits); }
DITTO_DEVICE void put(float x, float& to) { to = x; }
DITTO_DEVICE void put(float x, Bf16& to) { to.bits = to_bf16(x); }
DITTO_DEVICE void put(float x, Fp16& to) { to.bits = to_fp16(x); }

// N numbers that are read and written at once.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T at[N];
};
template <int N, class T>
DITTO_DEVICE void load(const T* from, float (&x)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = wide(pack.at[i]);
}
template <int N, class T>
DITTO_DEVICE void store(const float (&x)[N], T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) put(x[i], pack.at[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
template <int N>
DITTO_DEVICE void fill(float value, float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = value;
}

// e^x: 2^n e^f with f = x - n ln 2, |f| <= 0.35, by its Taylor polynomial of degree 7. Below -87: 0; above 88:
// infinity.
DITTO_DEVICE float exponential(float x) {
  const float magic = 12582912.0f, t = fused(x, 1.44269504f, magic), n = t - magic;
  float f = fused(n, -0.693145751953125f, x);
  f = fused(n, -1.42860677e-06f, f);
  float p = 1.0f / 5040;
  p = fused(p, f, 1.0f / 720);
  p = fused(p, f, 1.0f / 120);
  p = fused(p, f, 1.0f / 24);
  p = fused(p, f, 1.0f / 6);
  p = fused(p, f, 0.5f);
  p = fused(p, f, 1.0f);
  p = fused(p, f, 1.0f);
  const float r = as_float(as_bits(p) + (as_bits(t) << 23));
  return x < -87.0f ? 0.0f : x <= 88.0f ? r : x * as_float(0x7f800000u);  // what is no number stays none
}
DITTO_DEVICE float larger(float a, float b) { return a > b ? a : b; }
DITTO_DEVICE float sigmoid(float x) { return quotient(1.0f, 1.0f + exponential(-x)); }

// How many numbers a pack has: 16 bytes of them where rows of that width and all memory allow it, else one.
template <class T, class... Memory>
bool in_packs(Index width, const Memory*... memory) {
  const auto fits = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  return width % static_cast<Index>(16 / sizeof(T)) == 0 && (fits(memory) && ...);
}

// Calls f with a number of that storage.
template <class F>
Status by_storage(Storage storage, F f) {
  switch (storage) {
    case Storage::fp32: return f(float{});
    case Storage::bf16: return f(Bf16{});
    default: return f(Fp16{});
  }
}

}  // namespace ditto_cuda
