#include "core/receipts/tensor_hash.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/math/threads.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr std::int64_t kRunWords = 1 << 16;  // that a thread takes at once

// On the CPU, contiguous, of numbers of 32 or 64 bits.
Tensor in_words(const Tensor& tensor) {
  auto numbers = tensor.detach().cpu().contiguous();
  const auto bytes = numbers.element_size();
  if (bytes == 1) return numbers.view(torch::kByte).to(torch::kInt);
  if (bytes == 2) return numbers.view(torch::kShort).to(torch::kInt).bitwise_and(0xFFFF);
  TORCH_CHECK(bytes == 4 || bytes == 8, "numbers of ", bytes, " bytes have no hash");
  return numbers;
}

// Words before this number, row-major.
std::int64_t offset(const std::vector<int64_t>& place, at::IntArrayRef shape) {
  std::int64_t at = 0;
  for (size_t d = 0; d < place.size(); ++d) at = at * shape[d] + place[d];
  return at;
}

// The next row of a rectangle, of its first `dims` dims; false: there is none.
bool advance(std::vector<int64_t>& row, const std::vector<int64_t>& size, size_t dims) {
  for (size_t d = dims; d-- > 0;) {
    if (++row[d] < size[d]) return true;
    row[d] = 0;
  }
  return false;
}

std::vector<int64_t> sum_of(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  for (size_t d = 0; d < a.size(); ++d) a[d] += b[d];
  return a;
}

}  // namespace

std::string HashSum::text() const { return fmt::format("{:016x}{:016x}", lanes[0], lanes[1]); }

HashKey::HashKey(std::string_view name) {
  for (size_t lane = 0; lane < kHashLanes; ++lane) seeds[lane] = XXH3_64bits_withSeed(name.data(), name.size(), lane);
}

HashKey HashKey::of(std::int64_t number) const {
  auto key = *this;
  for (auto& seed : key.seeds) seed = splitmix64(seed, static_cast<std::uint64_t>(number));
  return key;
}

void TensorHash::add_run(const HashKey& key, const std::uint32_t* words, std::uint64_t first, std::int64_t count) {
  for (std::int64_t begin = 0; begin < count; begin += kRunWords)
    runs_.push_back(
        {words + begin, first + static_cast<std::uint64_t>(begin), std::min(kRunWords, count - begin), key});
}

void TensorHash::add(const HashKey& key, const Tensor& tensor) {
  const auto shape = tensor.sizes().vec();
  const std::vector<int64_t> start(shape.size(), 0);
  add(key, shape, {{start, start, shape}}, tensor);
}

void TensorHash::add(const HashKey& key, const std::vector<int64_t>& full_shape,
                     const std::vector<Rectangle>& rectangles, const Tensor& local, int64_t begin, int64_t end) {
  const auto& numbers = held_.emplace_back(in_words(local));
  const auto words = static_cast<std::int64_t>(numbers.element_size() / sizeof(std::uint32_t));
  const auto* data = static_cast<const std::uint32_t*>(numbers.const_data_ptr());
  for (const auto& rectangle : rectangles) {
    // The last dims that are here as wide as there are one run of numbers, with the dim before them.
    size_t dims = rectangle.size.size();
    std::int64_t run = 1;
    bool whole = true;
    while (dims > 0 && whole) {
      --dims;
      run *= rectangle.size[dims];
      whole =
          rectangle.size[dims] == full_shape[dims] && rectangle.size[dims] == local.size(static_cast<int64_t>(dims));
    }
    if (run == 0) continue;
    std::vector<int64_t> row(rectangle.size.size(), 0);
    do {
      const auto there = offset(sum_of(rectangle.global_start, row), full_shape);
      const auto here = offset(sum_of(rectangle.local_start, row), local.sizes());
      const auto from = std::max(begin, here), to = std::min(end, here + run);
      if (from < to)
        add_run(key, data + from * words, static_cast<std::uint64_t>((there + from - here) * words),
                (to - from) * words);
    } while (advance(row, rectangle.size, dims));
  }
}

bool TensorHash::counts(const LayoutEntry& entry, const Mesh& mesh) {
  return std::all_of(kAxes.begin(), kAxes.end(),
                     [&](Axis axis) { return !entry.is_copy(axis) || mesh.index(axis) == 0; });
}

void TensorHash::add(const Layout& layout, const Mesh& mesh, const std::function<Tensor(size_t)>& tensors) {
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    const auto& entry = layout.entries[i];
    const auto tensor = counts(entry, mesh) ? tensors(i) : Tensor();
    if (tensor.defined()) add(HashKey(entry.name), entry.full_shape, entry.slices(), tensor);
  }
}

HashSum TensorHash::sum() {
  HashSum all;
  std::mutex mutex;
  const auto runs = std::exchange(runs_, {});
  in_threads(static_cast<std::int64_t>(runs.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    HashSum own;
    for (auto i = begin; i < end; ++i) {
      const auto& run = runs[static_cast<size_t>(i)];
      for (std::uint64_t done = 0; done < static_cast<std::uint64_t>(run.count);) {
        const std::uint64_t block = (run.first + done) / kHashBlock, place = (run.first + done) % kHashBlock;
        const auto count = std::min<std::uint64_t>(kHashBlock - place, static_cast<std::uint64_t>(run.count) - done);
        std::array<std::uint64_t, kHashLanes> sums{};
        add_words(run.words + done, place, count, sums);
        for (size_t lane = 0; lane < kHashLanes; ++lane)
          own.lanes[lane] += (splitmix64(run.key.seeds[lane], block) | 1) * sums[lane];
        done += count;
      }
    }
    const std::lock_guard lock(mutex);
    all += own;
  });
  held_.clear();
  return all;
}

}  // namespace ditto
