// LayerNorm: J. L. Ba, J. R. Kiros and G. E. Hinton, 2016 (arXiv:1607.06450); modulation: arXiv:2212.09748.
// Compiled once for each instruction set by Highway; the processor's best is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "norm_modulate.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "norm_modulate.h"
#include "numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

// By the row's mean and deviation.
template <class S>
void modulate(const ForwardRow& row, size_t width) {
  using T = typename S::T;
  const auto *x = static_cast<const T*>(row.x), *shift = static_cast<const T*>(row.shift),
             *scale = static_cast<const T*>(row.scale);
  auto* y = static_cast<T*>(row.y);
  const float mean = *row.mean, rstd = *row.rstd;
  const D32 d;
  const V means = hn::Set(d, mean), rstds = hn::Set(d, rstd), one = hn::Set(d, 1.0f);
  walk(
      width,
      [&](size_t i) {
        const V normed = hn::Mul(hn::Sub(S::load(x + i), means), rstds);
        S::store(hn::MulAdd(normed, hn::Add(one, S::load(scale + i)), S::load(shift + i)), y + i);
      },
      [&](size_t i) { y[i] = S::from((S::one(x[i]) - mean) * rstd * (1 + S::one(scale[i])) + S::one(shift[i])); });
}

template <class S>
void forward(const ForwardRow& row, size_t width, float eps) {
  using T = typename S::T;
  const auto* x = static_cast<const T*>(row.x);
  const D32 d;
  V sums = hn::Zero(d);
  float rest = 0;
  walk(
      width, [&](size_t i) { sums = hn::Add(sums, S::load(x + i)); }, [&](size_t i) { rest += S::one(x[i]); });
  const float mean = (total(sums) + rest) / static_cast<float>(width);
  V squares = hn::Zero(d);
  const V means = hn::Set(d, mean);
  rest = 0;
  walk(
      width,
      [&](size_t i) {
        const V c = hn::Sub(S::load(x + i), means);
        squares = hn::MulAdd(c, c, squares);
      },
      [&](size_t i) { rest += (S::one(x[i]) - mean) * (S::one(x[i]) - mean); });
  const float rstd = 1 / std::sqrt((total(squares) + rest) / static_cast<float>(width) + eps);
  *row.mean = mean;
  *row.rstd = rstd;
  modulate<S>(row, width);
}

// With n = (x - mean) rstd and h = grad (1 + scale): dx = rstd (h - mean(h) - n mean(h n)).
template <class S>
void backward(const BackwardRow& row, size_t width) {
  using T = typename S::T;
  const auto *x = static_cast<const T*>(row.x), *scale = static_cast<const T*>(row.scale),
             *grad = static_cast<const T*>(row.grad);
  auto* dx = static_cast<T*>(row.dx);
  const D32 d;
  const V means = hn::Set(d, row.mean), rstds = hn::Set(d, row.rstd), one = hn::Set(d, 1.0f);
  V sum_h = hn::Zero(d), sum_hn = hn::Zero(d);
  float rest_h = 0, rest_hn = 0;
  walk(
      width,
      [&](size_t i) {
        const V g = S::load(grad + i), n = hn::Mul(hn::Sub(S::load(x + i), means), rstds);
        const V h = hn::Mul(g, hn::Add(one, S::load(scale + i)));
        sum_h = hn::Add(sum_h, h);
        sum_hn = hn::MulAdd(h, n, sum_hn);
        hn::StoreU(hn::Add(hn::LoadU(d, row.dshift + i), g), d, row.dshift + i);
        hn::StoreU(hn::MulAdd(g, n, hn::LoadU(d, row.dscale + i)), d, row.dscale + i);
      },
      [&](size_t i) {
        const float g = S::one(grad[i]), n = (S::one(x[i]) - row.mean) * row.rstd, h = g * (1 + S::one(scale[i]));
        rest_h += h, rest_hn += h * n;
        row.dshift[i] += g, row.dscale[i] += g * n;
      });
  const float mean_h = (total(sum_h) + rest_h) / static_cast<float>(width),
              mean_hn = (total(sum_hn) + rest_hn) / static_cast<float>(width);
  const V mean_hs = hn::Set(d, mean_h), mean_hns = hn::Set(d, mean_hn);
  walk(
      width,
      [&](size_t i) {
        const V n = hn::Mul(hn::Sub(S::load(x + i), means), rstds),
                h = hn::Mul(S::load(grad + i), hn::Add(one, S::load(scale + i)));
        S::store(hn::Mul(rstds, hn::NegMulAdd(n, mean_hns, hn::Sub(h, mean_hs))), dx + i);
      },
      [&](size_t i) {
        const float n = (S::one(x[i]) - row.mean) * row.rstd, h = S::one(grad[i]) * (1 + S::one(scale[i]));
        dx[i] = S::from(row.rstd * (h - mean_h - n * mean_hn));
      });
}

void ForwardRowOf(const ForwardRow& row, size_t width, float eps, Storage storage) {
  storage == Storage::fp32 ? forward<Fp32>(row, width, eps) : forward<Bf16>(row, width, eps);
}
void ModulateRowOf(const ForwardRow& row, size_t width, Storage storage) {
  storage == Storage::fp32 ? modulate<Fp32>(row, width) : modulate<Bf16>(row, width);
}
void BackwardRowOf(const BackwardRow& row, size_t width, Storage storage) {
  storage == Storage::fp32 ? backward<Fp32>(row, width) : backward<Bf16>(row, width);
}
const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ditto_cpu {

HWY_EXPORT(ForwardRowOf);
HWY_EXPORT(ModulateRowOf);
HWY_EXPORT(BackwardRowOf);
HWY_EXPORT(TargetName);

void forward_row(const ForwardRow& row, size_t width, float eps, Storage storage) {
  HWY_DYNAMIC_DISPATCH(ForwardRowOf)(row, width, eps, storage);
}
void modulate_row(const ForwardRow& row, size_t width, Storage storage) {
  HWY_DYNAMIC_DISPATCH(ModulateRowOf)(row, width, storage);
}
void backward_row(const BackwardRow& row, size_t width, Storage storage) {
  HWY_DYNAMIC_DISPATCH(BackwardRowOf)(row, width, storage);
}
const char* instructions() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace ditto_cpu
#endif
