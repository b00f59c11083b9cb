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

// The same in half of the operations, within a few units of the last place. 2^f by S. L. Moshier's polynomial (Cephes,
// exp2f), 1992.
HWY_INLINE V fast_sigmoid(V x) {
  const D32 d;
  const hn::RebindToSigned<D32> whole;
  constexpr float kLog2E = 1.44269504f, kMost = 120.0f;
  const V t = hn::Min(hn::Max(hn::Mul(x, hn::Set(d, -kLog2E)), hn::Set(d, -kMost)), hn::Set(d, kMost));
  const V rounded = hn::Round(t), f = hn::Sub(t, rounded);
  V sum = hn::Set(d, 1.535336188319500e-4f);
  for (const float c : {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f, 2.402264791363012e-1f,
                        6.931472028550421e-1f, 1.0f})
    sum = hn::MulAdd(sum, f, hn::Set(d, c));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(whole, rounded));
  const V e = hn::BitCast(d, hn::Add(hn::BitCast(whole, sum), exponent));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(e, hn::Set(d, 1.0f)));
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
