// Numbers in memory as vectors of fp32. Included once for each instruction set that Highway compiles for.
#if defined(DITTO_CPU_NUMBERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DITTO_CPU_NUMBERS_INL
#undef DITTO_CPU_NUMBERS_INL
#else
#define DITTO_CPU_NUMBERS_INL
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "storage.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::ScalableTag<float>;
using V = hn::Vec<D32>;

struct Fp32 {
  using T = float;
  static V load(const T* p) { return hn::LoadU(D32(), p); }
  static void store(V v, T* p) { hn::StoreU(v, D32(), p); }
  static float one(T x) { return x; }
  static T from(float x) { return x; }
};

struct Bf16 {
  using T = uint16_t;
  using D16 = hn::Rebind<uint16_t, D32>;
  using DU = hn::RebindToUnsigned<D32>;
  static V load(const T* p) { return hn::BitCast(D32(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(D16(), p)))); }
  static void store(V v, T* p) {  // rounds to nearest, ties to even
    const auto bits = hn::BitCast(DU(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7FFFu))));
    // A nan's payload must not be carried into an infinity.
    const auto safe = hn::IfThenElse(hn::RebindMask(DU(), hn::IsNaN(v)), hn::Set(DU(), 0x7FC0u), rounded);
    hn::StoreU(hn::TruncateTo(D16(), safe), D16(), p);
  }
  static float one(T x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
  static T from(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return std::isnan(x) ? 0x7FC0 : static_cast<T>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

// Walks over a row: `vector(i)` for whole vectors, `scalar(i)` for what is left. Inlined, so that sums stay in
// registers.
template <class Vector, class Scalar>
HWY_INLINE void walk(size_t width, Vector vector, Scalar scalar) {
  const size_t lanes = hn::Lanes(D32());
  size_t i = 0;
  for (; i + lanes <= width; i += lanes) vector(i);
  for (; i < width; ++i) scalar(i);
}

// `count` numbers from p on, as many as a vector has or fewer; of what lacks, zeros.
template <class S>
struct Some {
  using T = typename S::T;
  static V load(const T* p, size_t count) {
    if (count >= hn::Lanes(D32())) return S::load(p);
    HWY_ALIGN T pad[HWY_MAX_BYTES / sizeof(float)] = {};
    for (size_t i = 0; i < count; ++i) pad[i] = p[i];
    return S::load(pad);
  }
  static void store(V v, T* p, size_t count) {
    if (count >= hn::Lanes(D32())) return S::store(v, p);
    HWY_ALIGN T pad[HWY_MAX_BYTES / sizeof(float)];
    S::store(v, pad);
    for (size_t i = 0; i < count; ++i) p[i] = pad[i];
  }
};
// Calls f(i, count) for vectors, the last of which may lack some numbers: Some loads and stores these.
template <class F>
HWY_INLINE void each(size_t count, F f) {
  const size_t lanes = hn::Lanes(D32());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) f(i, lanes);
  if (i < count) f(i, count - i);
}

inline float total(V v) { return hn::GetLane(hn::SumOfLanes(D32(), v)); }

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
