#include "core/mesh/exact_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <ditto/math/threads.h>

namespace ditto {

namespace {

constexpr int kDigit = 32;           // bits
constexpr int kLowest = -300;        // a unit of the first bin is 2^kLowest
constexpr int64_t kBlock = 1 << 16;  // numbers whose squares of one exponent fit 64 bits
constexpr int kNoNumber = 255;       // the exponent of what is infinite or no number

}  // namespace

// The squares of one exponent are multiples of one unit and below 2^48, so that a block of them is added as they are;
// then what is there goes to the bins. Of each exponent there are four sums: neighbours often share theirs, and an
// addition waits for the one before it to the same place.
void SquareSum::add(const float* x, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    std::uint64_t sums[4][256] = {};
    for (int64_t i = begin; i < end; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      const std::uint32_t exponent = bits >> 23 & 255;
      const std::uint64_t fraction = (bits & 0x7FFFFF) | static_cast<std::uint32_t>(exponent != 0) << 23;
      sums[i & 3][exponent] += fraction * fraction;
    }
    for (int exponent = 0; exponent < kNoNumber; ++exponent) {
      const std::uint64_t sum = sums[0][exponent] + sums[1][exponent] + sums[2][exponent] + sums[3][exponent];
      if (sum == 0) continue;
      const int place = 2 * std::max(exponent, 1);  // 0: denormals
      const int shift = place % kDigit;
      const std::uint64_t low = sum << shift, high = shift ? sum >> (64 - shift) : 0;
      auto* bin = bins_.data() + place / kDigit;
      bin[0] += static_cast<int64_t>(low & 0xFFFFFFFF);
      bin[1] += static_cast<int64_t>(low >> kDigit);
      bin[2] += static_cast<int64_t>(high);
    }
    carry();
    if (sums[0][kNoNumber] + sums[1][kNoNumber] + sums[2][kNoNumber] + sums[3][kNoNumber] == 0) continue;
    for (int64_t i = begin; i < end; ++i)
      if (!std::isfinite(x[i])) ++(std::isnan(x[i]) ? nan_ : infinite_);
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
  std::vector<std::pair<torch::Tensor, int64_t>> pieces;  // of all gradients alike: most may be small
  for (const auto& entry : layout.entries) {
    const auto& grad = entry.tensor.grad();
    const bool counts =
        std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return !entry.is_copy(axis) || mesh.index(axis) == 0; });
    if (!grad.defined() || !counts) continue;
    TORCH_CHECK(grad.scalar_type() == torch::kFloat && grad.is_cpu(), "the exact norm is of fp32 numbers on the CPU");
    const auto numbers = grad.contiguous();
    for (int64_t first = 0; first < numbers.numel(); first += kBlock) pieces.emplace_back(numbers, first);
  }
  SquareSum sum;
  std::mutex mutex;
  in_threads(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    SquareSum own;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto& [numbers, first] = pieces[i];
      own.add(numbers.const_data_ptr<float>() + first, std::min(kBlock, numbers.numel() - first));
    }
    const std::lock_guard lock(mutex);
    sum.add(own);
  });
  const auto mine = sum.numbers();
  auto all = torch::empty({static_cast<int64_t>(mine.size())}, torch::kLong);
  std::copy(mine.begin(), mine.end(), all.data_ptr<int64_t>());
  all = mesh.group(axes).all_reduce(all);
  sum.set(all.const_data_ptr<int64_t>());
  return static_cast<double>(static_cast<float>(sum.root()));
}

}  // namespace ditto
