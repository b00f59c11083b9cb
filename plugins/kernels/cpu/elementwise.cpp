// Compiled once for each instruction set by Highway; the processor's best is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "elementwise.h"
#include "numbers-inl.h"
#include "silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

// tanh(u) = 2 sigmoid(2 u) - 1, so that GELU is x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float kScale = 1.5957691216f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  static V inner(V x) {
    const D32 d;
    return hn::Mul(hn::Mul(hn::Set(d, kScale), x), hn::MulAdd(hn::Mul(hn::Set(d, kCube), x), x, hn::Set(d, 1.0f)));
  }
  static V of(V x) { return hn::Mul(x, sigmoid(inner(x))); }
  static V slope(V x) {
    const D32 d;
    const V s = sigmoid(inner(x)), one = hn::Set(d, 1.0f);
    const V inner_slope = hn::Mul(hn::Set(d, kScale), hn::MulAdd(hn::Mul(hn::Set(d, 3 * kCube), x), x, one));
    return hn::MulAdd(hn::Mul(hn::Mul(x, s), hn::Sub(one, s)), inner_slope, s);
  }
};
template <class S, class A>
void apply(const void* from, void* to, size_t count) {
  using T = typename S::T;
  const auto* x = static_cast<const T*>(from);
  auto* y = static_cast<T*>(to);
  each(count, [&](size_t i, size_t n) { Some<S>::store(A::of(Some<S>::load(x + i, n)), y + i, n); });
}
template <class S, class A>
void apply_back(const void* from, const void* of_y, void* to, size_t count) {
  using T = typename S::T;
  const auto *x = static_cast<const T*>(from), *grad = static_cast<const T*>(of_y);
  auto* dx = static_cast<T*>(to);
  each(count, [&](size_t i, size_t n) {
    Some<S>::store(hn::Mul(A::slope(Some<S>::load(x + i, n)), Some<S>::load(grad + i, n)), dx + i, n);
  });
}

template <class S>
void gate_row(const void* x, const void* gate, const void* y, void* out, size_t width) {
  using T = typename S::T;
  const auto *a = static_cast<const T*>(x), *g = static_cast<const T*>(gate), *b = static_cast<const T*>(y);
  auto* to = static_cast<T*>(out);
  each(width, [&](size_t i, size_t n) {
    Some<S>::store(hn::MulAdd(Some<S>::load(g + i, n), Some<S>::load(b + i, n), Some<S>::load(a + i, n)), to + i, n);
  });
}
template <class S>
void gate_row_back(const void* gate, const void* y, const void* of_out, void* to, float* dgate, size_t width) {
  using T = typename S::T;
  const auto *g = static_cast<const T*>(gate), *b = static_cast<const T*>(y), *grad = static_cast<const T*>(of_out);
  auto* dy = static_cast<T*>(to);
  each(width, [&](size_t i, size_t n) {
    const V r = Some<S>::load(grad + i, n);
    Some<S>::store(hn::Mul(r, Some<S>::load(g + i, n)), dy + i, n);
    const V sum = hn::MulAdd(r, Some<S>::load(b + i, n), Some<Fp32>::load(dgate + i, n));
    Some<Fp32>::store(sum, dgate + i, n);
  });
}

void ActivateOf(Activation kind, const void* x, void* y, size_t count, Storage storage) {
  const bool fp32 = storage == Storage::fp32;
  if (kind == Activation::gelu_tanh)
    fp32 ? apply<Fp32, GeluTanh>(x, y, count) : apply<Bf16, GeluTanh>(x, y, count);
  else
    fp32 ? apply<Fp32, Silu>(x, y, count) : apply<Bf16, Silu>(x, y, count);
}
void ActivateBackOf(Activation kind, const void* x, const void* grad, void* dx, size_t count, Storage storage) {
  const bool fp32 = storage == Storage::fp32;
  if (kind == Activation::gelu_tanh)
    fp32 ? apply_back<Fp32, GeluTanh>(x, grad, dx, count) : apply_back<Bf16, GeluTanh>(x, grad, dx, count);
  else
    fp32 ? apply_back<Fp32, Silu>(x, grad, dx, count) : apply_back<Bf16, Silu>(x, grad, dx, count);
}
void GateOf(const void* x, const void* gate, const void* y, void* out, size_t width, Storage storage) {
  storage == Storage::fp32 ? gate_row<Fp32>(x, gate, y, out, width) : gate_row<Bf16>(x, gate, y, out, width);
}
void GateBackOf(const void* gate, const void* y, const void* grad, void* dy, float* dgate, size_t width,
                Storage storage) {
  storage == Storage::fp32 ? gate_row_back<Fp32>(gate, y, grad, dy, dgate, width)
                           : gate_row_back<Bf16>(gate, y, grad, dy, dgate, width);
}

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ditto_cpu {

HWY_EXPORT(ActivateOf);
HWY_EXPORT(ActivateBackOf);
HWY_EXPORT(GateOf);
HWY_EXPORT(GateBackOf);

void activate(Activation kind, const void* x, void* y, size_t count, Storage storage) {
  HWY_DYNAMIC_DISPATCH(ActivateOf)(kind, x, y, count, storage);
}
void activate_back(Activation kind, const void* x, const void* grad, void* dx, size_t count, Storage storage) {
  HWY_DYNAMIC_DISPATCH(ActivateBackOf)(kind, x, grad, dx, count, storage);
}
void gate(const void* x, const void* gate, const void* y, void* out, size_t width, Storage storage) {
  HWY_DYNAMIC_DISPATCH(GateOf)(x, gate, y, out, width, storage);
}
void gate_back(const void* gate, const void* y, const void* grad, void* dy, float* dgate, size_t width,
               Storage storage) {
  HWY_DYNAMIC_DISPATCH(GateBackOf)(gate, y, grad, dy, dgate, width, storage);
}

}  // namespace ditto_cpu
#endif
