// GroupNorm: Y. Wu and K. He, 2018 (arXiv:1803.08494). Compiled once for each instruction set by Highway; the
// processor's best is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "group_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "group_norm.h"
#include "numbers-inl.h"
#include "silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

HWY_INLINE V silu_slope(V z) {
  const V s = fast_sigmoid(z), one = hn::Set(D32(), 1.0f);
  return hn::MulAdd(hn::Mul(z, s), hn::Sub(one, s), s);
}

constexpr size_t kPiece = 4096;  // numbers of a row that are summed in fp32

// A channel's number for all of a row, or those of a row's channels.
struct OfRow {
  OfRow(const float* of_channels, size_t row) : v(hn::Set(D32(), of_channels[row])) {}
  V at(size_t, size_t) const { return v; }
  V v;
};
struct OfPlace {
  OfPlace(const float* of_channels, size_t) : p(of_channels) {}
  V at(size_t i, size_t n) const { return Some<Fp32>::load(p + i, n); }
  const float* p;
};

template <class Each>
struct Normed {
  Normed(const GroupNorm& norm, size_t row)
      : mean(norm.mean, row), rstd(norm.rstd, row), k(norm.k, row), l(norm.l, row) {}
  V n(V x, size_t i, size_t count) const { return hn::Mul(hn::Sub(x, mean.at(i, count)), rstd.at(i, count)); }
  V z(V n, size_t i, size_t count) const { return hn::MulAdd(n, k.at(i, count), l.at(i, count)); }
  Each mean, rstd, k, l;
};

// of(S, Each, is_silu), with how numbers lie in the place of S.
template <class F>
void choose(const MapRows& rows, bool silu, F of) {
  const auto with = [&](auto storage, auto each) {
    silu ? of(storage, each, std::true_type()) : of(storage, each, std::false_type());
  };
  const auto of_storage = [&](auto storage) {
    rows.along == Along::places ? with(storage, std::type_identity<OfRow>())
                                : with(storage, std::type_identity<OfPlace>());
  };
  rows.storage == Storage::fp32 ? of_storage(Fp32()) : of_storage(Bf16());
}

// Adds terms(row, i, count), zeros beyond count, to each channel's sums.
template <size_t kSums, class F>
void add(const MapRows& rows, const std::array<double*, kSums>& to, F terms) {
  const D32 d;
  if (rows.along == Along::places) {
    for (size_t row = 0; row < rows.rows; ++row)
      for (size_t first = 0; first < rows.width; first += kPiece) {
        V sums[kSums];
        for (V& sum : sums) sum = hn::Zero(d);
        each(std::min(kPiece, rows.width - first), [&](size_t i, size_t count) {
          V more[kSums];
          terms(row, first + i, count, more);
          for (size_t k = 0; k < kSums; ++k) sums[k] = hn::Add(sums[k], more[k]);
        });
        for (size_t k = 0; k < kSums; ++k) to[k][row] += static_cast<double>(total(sums[k]));
      }
    return;
  }
  std::vector<float> sums(kSums * rows.width);
  for (size_t row = 0; row < rows.rows; ++row)
    each(rows.width, [&](size_t i, size_t count) {
      V more[kSums];
      terms(row, i, count, more);
      for (size_t k = 0; k < kSums; ++k) {
        float* const sum = sums.data() + k * rows.width + i;
        Some<Fp32>::store(hn::Add(Some<Fp32>::load(sum, count), more[k]), sum, count);
      }
    });
  for (size_t k = 0; k < kSums; ++k)
    for (size_t i = 0; i < rows.width; ++i) to[k][i] += static_cast<double>(sums[k * rows.width + i]);
}

HWY_FLATTEN void AddNumbers(const MapRows& rows, const void* x, double* sums) {
  choose(rows, false, [&](auto storage, auto, auto) {
    using S = decltype(storage);
    const auto* from = static_cast<const typename S::T*>(x);
    add<1>(rows, {sums}, [&](size_t row, size_t i, size_t count, V* more) {
      more[0] = Some<S>::load(from + row * rows.width + i, count);
    });
  });
}

HWY_FLATTEN void AddSquares(const MapRows& rows, const void* x, const float* mean, double* sums) {
  choose(rows, false, [&](auto storage, auto each_of, auto) {
    using S = decltype(storage);
    using Each = typename decltype(each_of)::type;
    const auto* from = static_cast<const typename S::T*>(x);
    add<1>(rows, {sums}, [&](size_t row, size_t i, size_t count, V* more) {
      const V apart = hn::Sub(Some<S>::load(from + row * rows.width + i, count), Each(mean, row).at(i, count));
      const V square = hn::Mul(apart, apart);
      more[0] = count < hn::Lanes(D32()) ? hn::IfThenElseZero(hn::FirstN(D32(), count), square) : square;
    });
  });
}

HWY_FLATTEN void Normalise(const MapRows& rows, const void* x, const GroupNorm& norm, void* y) {
  choose(rows, norm.silu, [&](auto storage, auto each_of, auto is_silu) {
    using S = decltype(storage);
    for (size_t row = 0; row < rows.rows; ++row) {
      const Normed<typename decltype(each_of)::type> of(norm, row);
      const auto* from = static_cast<const typename S::T*>(x) + row * rows.width;
      auto* to = static_cast<typename S::T*>(y) + row * rows.width;
      each(rows.width, [&](size_t i, size_t count) {
        V z = of.z(of.n(Some<S>::load(from + i, count), i, count), i, count);
        if constexpr (is_silu) z = hn::Mul(z, fast_sigmoid(z));
        Some<S>::store(z, to + i, count);
      });
    }
  });
}

HWY_FLATTEN void AddGradients(const MapRows& rows, const void* x, const void* grad, const GroupNorm& norm, void* gz,
                              double* sums_gz, double* sums_gzn) {
  choose(rows, norm.silu, [&](auto storage, auto each_of, auto is_silu) {
    using S = decltype(storage);
    const auto *from = static_cast<const typename S::T*>(x), *of_y = static_cast<const typename S::T*>(grad);
    auto* to = static_cast<typename S::T*>(gz);
    add<2>(rows, {sums_gz, sums_gzn}, [&](size_t row, size_t i, size_t count, V* more) {
      const Normed<typename decltype(each_of)::type> of(norm, row);
      const size_t at = row * rows.width + i;
      const V n = of.n(Some<S>::load(from + at, count), i, count);
      V g = Some<S>::load(of_y + at, count);
      if constexpr (is_silu) g = hn::Mul(g, silu_slope(of.z(n, i, count)));
      Some<S>::store(g, to + at, count);
      more[0] = g, more[1] = hn::Mul(g, n);
    });
  });
}

HWY_FLATTEN void NormaliseBack(const MapRows& rows, const void* x, const GroupNorm& norm, const GroupNormBack& back,
                               void* gz_to_dx) {
  choose(rows, false, [&](auto storage, auto each_of, auto) {
    using S = decltype(storage);
    using Each = typename decltype(each_of)::type;
    for (size_t row = 0; row < rows.rows; ++row) {
      const Normed<Each> of(norm, row);
      const Each p(back.p, row), q(back.q, row), r(back.r, row);
      const auto* from = static_cast<const typename S::T*>(x) + row * rows.width;
      auto* to = static_cast<typename S::T*>(gz_to_dx) + row * rows.width;
      each(rows.width, [&](size_t i, size_t count) {
        const V n = of.n(Some<S>::load(from + i, count), i, count);
        const V rest = hn::MulAdd(q.at(i, count), n, r.at(i, count));
        Some<S>::store(hn::MulAdd(p.at(i, count), Some<S>::load(to + i, count), rest), to + i, count);
      });
    }
  });
}

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ditto_cpu {

HWY_EXPORT(AddNumbers);
HWY_EXPORT(AddSquares);
HWY_EXPORT(Normalise);
HWY_EXPORT(AddGradients);
HWY_EXPORT(NormaliseBack);

void add_numbers(const MapRows& rows, const void* x, double* sums) { HWY_DYNAMIC_DISPATCH(AddNumbers)(rows, x, sums); }
void add_squares(const MapRows& rows, const void* x, const float* mean, double* sums) {
  HWY_DYNAMIC_DISPATCH(AddSquares)(rows, x, mean, sums);
}
void normalise(const MapRows& rows, const void* x, const GroupNorm& norm, void* y) {
  HWY_DYNAMIC_DISPATCH(Normalise)(rows, x, norm, y);
}
void add_gradients(const MapRows& rows, const void* x, const void* grad, const GroupNorm& norm, void* gz,
                   double* sums_gz, double* sums_gzn) {
  HWY_DYNAMIC_DISPATCH(AddGradients)(rows, x, grad, norm, gz, sums_gz, sums_gzn);
}
void normalise_back(const MapRows& rows, const void* x, const GroupNorm& norm, const GroupNormBack& back,
                    void* gz_to_dx) {
  HWY_DYNAMIC_DISPATCH(NormaliseBack)(rows, x, norm, back, gz_to_dx);
}

}  // namespace ditto_cpu
#endif
