#include "core/dist/exact_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include <ATen/Parallel.h>
#include <torch/types.h>

namespace ditto {

namespace {

constexpr int kDigit = 32;               // bits
constexpr int kLowest = -300;            // a unit of the first bin is 2^kLowest
constexpr int64_t kUncarried = 1 << 28;  // numbers whose digits fit a bin, with those of carried sums
constexpr int64_t kGrain = 1 << 16;      // numbers a thread is worth

// Bin `digit` and up: what 24 bits squared and shifted reach into.
struct Square {
  int digit;
  std::uint64_t low, middle, high;
};

Square square_of(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 23) & 255);
  const std::uint64_t fraction = exponent ? ((bits & 0x7FFFFF) | 0x800000) : (bits & 0x7FFFFF);  // 0: a denormal
  const int place = 2 * std::max(exponent, 1);
  const std::uint64_t square = fraction * fraction;  // below 2^48
  const int shift = place % kDigit;
  const std::uint64_t low = square << shift, high = shift ? square >> (64 - shift) : 0;
  return {place / kDigit, low & 0xFFFFFFFF, low >> kDigit, high};
}

}  // namespace

void SquareSum::add(const float* x, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kUncarried) {
    for (int64_t i = begin; i < std::min(count, begin + kUncarried); ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      if ((bits >> 23 & 255) == 255) {
        ++((bits & 0x7FFFFF) ? nan_ : infinite_);
        continue;
      }
      const auto square = square_of(bits);
      auto* bin = bins_.data() + square.digit;
      bin[0] += static_cast<int64_t>(square.low);
      bin[1] += static_cast<int64_t>(square.middle);
      bin[2] += static_cast<int64_t>(square.high);
    }
    carry();
  }
}

void SquareSum::add(const SquareSum& other) {
  for (size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
  infinite_ += other.infinite_;
  nan_ += other.nan_;
  carry();
}

void SquareSum::carry() {
  for (size_t i = 0; i + 1 < bins_.size(); ++i) {
    bins_[i + 1] += bins_[i] >> kDigit;
    bins_[i] &= 0xFFFFFFFF;
  }
}

// Digits from the top: the first two or three that are not zero decide, the others are too small to be seen.
double SquareSum::root() const {
  if (nan_ > 0) return std::numeric_limits<double>::quiet_NaN();
  if (infinite_ > 0) return std::numeric_limits<double>::infinity();
  SquareSum carried = *this;
  carried.carry();
  double sum = 0;
  for (int i = static_cast<int>(kBins) - 1; i >= 0; --i)
    sum += std::ldexp(static_cast<double>(carried.bins_[static_cast<size_t>(i)]), kDigit * i + kLowest);
  return std::sqrt(sum);
}

std::array<int64_t, SquareSum::kBins + 2> SquareSum::numbers() {
  carry();
  std::array<int64_t, kBins + 2> numbers{};
  std::copy(bins_.begin(), bins_.end(), numbers.begin());
  numbers[kBins] = infinite_;
  numbers[kBins + 1] = nan_;
  return numbers;
}

void SquareSum::set(const int64_t* numbers) {
  std::copy(numbers, numbers + kBins, bins_.begin());
  infinite_ = numbers[kBins];
  nan_ = numbers[kBins + 1];
  carry();
}

double exact_norm(const Layout& layout, const Mesh& mesh, const AxisSet& axes) {
  SquareSum sum;
  std::mutex mutex;
  for (const auto& entry : layout.entries) {
    const auto& grad = entry.tensor.grad();
    const bool counts =
        std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return !entry.is_copy(axis) || mesh.index(axis) == 0; });
    if (!grad.defined() || !counts) continue;
    TORCH_CHECK(grad.scalar_type() == torch::kFloat && grad.is_cpu(), "the exact norm is of fp32 numbers on the CPU");
    const auto numbers = grad.contiguous();
    at::parallel_for(0, numbers.numel(), kGrain, [&](int64_t begin, int64_t end) {
      SquareSum own;
      own.add(numbers.const_data_ptr<float>() + begin, end - begin);
      const std::lock_guard lock(mutex);
      sum.add(own);
    });
  }
  const auto mine = sum.numbers();
  auto all = torch::empty({static_cast<int64_t>(mine.size())}, torch::kLong);
  std::copy(mine.begin(), mine.end(), all.data_ptr<int64_t>());
  all = mesh.group(axes).all_reduce(all);
  sum.set(all.const_data_ptr<int64_t>());
  return static_cast<double>(static_cast<float>(sum.root()));
}

}  // namespace ditto
