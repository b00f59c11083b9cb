// SiLU, x / (1 + e^-x), and what it is made of. Included once for each instruction set that Highway compiles for.
#if defined(DITTO_CPU_SILU_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DITTO_CPU_SILU_INL
#undef DITTO_CPU_SILU_INL
#else
#define DITTO_CPU_SILU_INL
#endif

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

HWY_INLINE V sigmoid(V x) {
  const D32 d;
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0f)))));  // Exp knows none above 104
}

struct Silu {
  static V of(V x) { return hn::Mul(x, sigmoid(x)); }
  static V slope(V x) {
    const D32 d;
    const V s = sigmoid(x), one = hn::Set(d, 1.0f);
    return hn::MulAdd(hn::Mul(x, s), hn::Sub(one, s), s);
  }
};

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
