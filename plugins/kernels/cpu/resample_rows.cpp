// Pictures with each place several times, and the sums of a place's copies, a pass each. Means and cubic convolutions
// are left to the reference: their maps are small beside the convolutions around them.
#include <algorithm>
#include <cstring>

#include <ditto/math/threads.h>

#include "repeat.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

constexpr size_t kNumbers = 16 * 1024;  // of a piece, at least

int score_of_nearest(const ditto::OpCall& call) {
  const bool is_nearest = static_cast<ditto::Resample>(call.inputs.whole("kind")) == ditto::Resample::nearest;
  return is_nearest && call.inputs.tensor(0).dim() == 4 ? score(call) : 0;
}

bool lies_channels_last(const Tensor& x) { return !x.is_contiguous() && x.movedim(1, -1).is_contiguous(); }

// A call's rows of places: of every channel's map, or of a sample's whose channels lie side by side.
struct Rows {
  explicit Rows(const OpInputs& in) : x(in.tensors[0]), last(lies_channels_last(x)) {
    const auto& times = in.list("sides");
    copies = static_cast<size_t>(times[0]);
    row = {static_cast<size_t>(x.size(3)), last ? static_cast<size_t>(x.size(1)) : 1, static_cast<size_t>(times[1]),
           storage_of(x)};
    count = static_cast<size_t>(x.size(0) * x.size(2)) * (last ? 1 : static_cast<size_t>(x.size(1)));
    size = static_cast<size_t>(x.element_size());
    sizes = {x.size(0), x.size(1), x.size(2) * times[0], x.size(3) * times[1]};
  }
  Tensor laid(const Tensor& map) const {
    return last ? map.movedim(1, -1).contiguous().movedim(-1, 1) : map.contiguous();
  }
  Tensor room(at::IntArrayRef of) const {
    return torch::empty(of, x.options().requires_grad(false),
                        last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous);
  }
  size_t small() const { return row.places * row.inner * size; }  // bytes of a row
  size_t large() const { return copies * row.numbers() * size; }  // of all that it becomes
  template <class F>
  void each(F of) const {
    const size_t grain = std::max<size_t>(1, kNumbers / std::max<size_t>(1, copies * row.numbers()));
    ditto::in_threads(static_cast<int64_t>(count), static_cast<int64_t>(grain),
                      [&](int64_t begin, int64_t end) { of(static_cast<size_t>(begin), static_cast<size_t>(end)); });
  }

  Tensor x;
  bool last;
  PlacesOfRow row{};
  size_t copies, count, size;
  std::vector<int64_t> sizes;  // that come out
};

Tensor repeated(const OpInputs& in) {
  const Rows rows(in);
  const Tensor x = rows.laid(rows.x), y = rows.room(rows.sizes);
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.data_ptr());
  const size_t bytes = rows.row.numbers() * rows.size;
  rows.each([&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      char* const first = to + i * rows.large();
      repeat(rows.row, from + i * rows.small(), first);
      for (size_t copy = 1; copy < rows.copies; ++copy) std::memcpy(first + copy * bytes, first, bytes);
    }
  });
  return y;
}

Tensors repeated_back(const Tensors& grads, const OpInputs& in, const Tensors&) {
  const Rows rows(in);
  const Tensor grad = rows.laid(grads[0]), dx = rows.room(rows.x.sizes());
  const auto* from = static_cast<const char*>(grad.const_data_ptr());
  auto* to = static_cast<char*>(dx.data_ptr());
  rows.each([&](size_t begin, size_t end) {
    std::vector<float> room(rows.row.numbers());
    for (size_t i = begin; i < end; ++i)
      add_repeats(rows.row, rows.copies, from + i * rows.large(), room.data(), to + i * rows.small());
  });
  return {dx};
}

}  // namespace

ditto::KernelRow resample() {
  ditto::KernelRow row{"resample",
                       "cpu_simd",
                       score_of_nearest,
                       [](const OpInputs& in) -> Tensors { return {repeated(in)}; },
                       repeated_back,
                       [](const OpInputs& in) -> Tensors {
                         const Rows rows(in);
                         return {rows.room(rows.sizes)};
                       }};
  row.any_gradient = true;
  row.again = [](const OpInputs& in, const Tensors&) { return repeated(in); };
  row.again_of = {0};
  return row;
}

}  // namespace ditto_cpu
