// Compiled once for each instruction set by Highway; the processor's best is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "one_pass.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "one_pass.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_adamw::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// To the nearest bf16, of two the even one.
void store_bf16(V x, std::uint16_t* to) {
  const hn::RebindToUnsigned<D> u;
  const hn::Rebind<std::uint16_t, D> half;
  const auto bits = hn::BitCast(u, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFu))));
  // A nan's payload must not be carried into an infinity.
  const auto safe = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(x)), hn::Set(u, 0x7FC0u), rounded);
  hn::StoreU(hn::TruncateTo(half, safe), half, to);
}

struct Numbers {
  V w, m, v, average;
};

Numbers update(const Pass& p, V w, V g, V m, V v, V average) {
  const D d;
  g = hn::Mul(g, hn::Set(d, p.clip));
  m = hn::MulAdd(hn::Set(d, 1 - p.beta1), hn::Sub(g, m), m);
  v = hn::MulAdd(hn::Mul(g, g), hn::Set(d, 1 - p.beta2), hn::Mul(v, hn::Set(d, p.beta2)));
  const V spread = hn::MulAdd(hn::Sqrt(v), hn::Set(d, p.root), hn::Set(d, p.eps));
  w = hn::NegMulAdd(hn::Set(d, p.rate), hn::Div(m, spread), hn::Mul(w, hn::Set(d, p.keep)));
  average = hn::MulAdd(hn::Set(d, p.approach), hn::Sub(w, average), average);
  return {w, m, v, average};
}

void Run(const Pass& p, size_t begin, size_t end) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const float* const average = p.average ? p.average : p.w;  // read, and not written where there is none
  size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto at = [&](const float* x) { return hn::LoadU(d, x + i); };
    const auto n = update(p, at(p.w), at(p.g), at(p.m), at(p.v), at(average));
    hn::StoreU(n.w, d, p.w + i), hn::StoreU(n.m, d, p.m + i), hn::StoreU(n.v, d, p.v + i);
    if (p.average) hn::StoreU(n.average, d, p.average + i);
    if (p.copy) store_bf16(n.w, p.copy + i);
  }
  for (; i < end; ++i) {  // through the same vector code
    HWY_ALIGN float pad[HWY_MAX_BYTES / sizeof(float)];
    HWY_ALIGN std::uint16_t half[HWY_MAX_BYTES / sizeof(float)];
    const auto at = [&](const float* x) { return hn::Set(d, x[i]); };
    const auto n = update(p, at(p.w), at(p.g), at(p.m), at(p.v), at(average));
    const auto first = [&](V x) { return hn::Store(x, d, pad), pad[0]; };
    p.w[i] = first(n.w), p.m[i] = first(n.m), p.v[i] = first(n.v);
    if (p.average) p.average[i] = first(n.average);
    if (p.copy) store_bf16(n.w, half), p.copy[i] = half[0];
  }
}

}  // namespace ditto_adamw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ditto_adamw {

HWY_EXPORT(Run);
void run(const Pass& pass, size_t begin, size_t end) { HWY_DYNAMIC_DISPATCH(Run)(pass, begin, end); }

}  // namespace ditto_adamw
#endif
