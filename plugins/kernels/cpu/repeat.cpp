// Compiled once for each instruction set by Highway; the processor's best is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "repeat.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "numbers-inl.h"
#include "repeat.h"

HWY_BEFORE_NAMESPACE();
namespace ditto_cpu::HWY_NAMESPACE {

// Numbers as they are.
template <class T>
void repeat_numbers(const PlacesOfRow& row, const T* x, T* y) {
  size_t place = 0;
  if (row.inner == 1 && row.times == 2) {
    const hn::ScalableTag<T> d;
    const size_t lanes = hn::Lanes(d);
    for (; place + lanes <= row.places; place += lanes) {
      const auto v = hn::LoadU(d, x + place);
      hn::StoreInterleaved2(v, v, d, y + 2 * place);
    }
  }
  for (; place < row.places; ++place)
    for (size_t copy = 0; copy < row.times; ++copy) {
      T* const to = y + (place * row.times + copy) * row.inner;
      if (row.inner == 1)
        *to = x[place];
      else
        std::memcpy(to, x + place * row.inner, row.inner * sizeof(T));
    }
}

HWY_FLATTEN void Repeat(const PlacesOfRow& row, const void* x, void* y) {
  row.storage == Storage::fp32 ? repeat_numbers(row, static_cast<const float*>(x), static_cast<float*>(y))
                               : repeat_numbers(row, static_cast<const uint16_t*>(x), static_cast<uint16_t*>(y));
}

template <class S>
void add_columns(const PlacesOfRow& row, const float* sums, typename S::T* y) {
  const D32 d;
  size_t place = 0;
  if (row.inner == 1 && row.times == 2) {
    const size_t lanes = hn::Lanes(d);
    for (; place + lanes <= row.places; place += lanes) {
      V first, second;
      hn::LoadInterleaved2(d, sums + 2 * place, first, second);
      S::store(hn::Add(first, second), y + place);
    }
  }
  for (; place < row.places; ++place) {
    const float* const from = sums + place * row.times * row.inner;
    if (row.inner == 1) {
      float sum = from[0];
      for (size_t copy = 1; copy < row.times; ++copy) sum += from[copy];
      y[place] = S::from(sum);
      continue;
    }
    each(row.inner, [&](size_t i, size_t count) {
      V sum = Some<Fp32>::load(from + i, count);
      for (size_t copy = 1; copy < row.times; ++copy)
        sum = hn::Add(sum, Some<Fp32>::load(from + copy * row.inner + i, count));
      Some<S>::store(sum, y + place * row.inner + i, count);
    });
  }
}

template <class S>
void add_all(const PlacesOfRow& row, size_t rows, const typename S::T* x, float* room, typename S::T* y) {
  each(row.numbers(), [&](size_t i, size_t count) {
    V sum = Some<S>::load(x + i, count);
    for (size_t other = 1; other < rows; ++other)
      sum = hn::Add(sum, Some<S>::load(x + other * row.numbers() + i, count));
    Some<Fp32>::store(sum, room + i, count);
  });
  add_columns<S>(row, room, y);
}

HWY_FLATTEN void AddRepeats(const PlacesOfRow& row, size_t rows, const void* x, float* room, void* y) {
  row.storage == Storage::fp32
      ? add_all<Fp32>(row, rows, static_cast<const float*>(x), room, static_cast<float*>(y))
      : add_all<Bf16>(row, rows, static_cast<const uint16_t*>(x), room, static_cast<uint16_t*>(y));
}

}  // namespace ditto_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ditto_cpu {

HWY_EXPORT(Repeat);
HWY_EXPORT(AddRepeats);

void repeat(const PlacesOfRow& row, const void* x, void* y) { HWY_DYNAMIC_DISPATCH(Repeat)(row, x, y); }
void add_repeats(const PlacesOfRow& row, size_t rows, const void* x, float* room, void* y) {
  HWY_DYNAMIC_DISPATCH(AddRepeats)(row, rows, x, room, y);
}

}  // namespace ditto_cpu
#endif
