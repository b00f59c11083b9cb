// What layers over maps are made of: their meaning on ATen.
//
// Legend: B samples, C channels, N channels that come out, P a map's places, of 1 to 3 sides.
#include "ops/map_ops.h"

#include <algorithm>
#include <cmath>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

using Shape = std::vector<int64_t>;

// Zeros that LibTorch's convolution does not add itself, as its padding is the same at both ends: of the last side
// first, before it and after it.
Shape around(const Shape& before, const Shape& after) {
  Shape zeros;
  for (size_t side = before.size(); side-- > 0;) zeros.insert(zeros.end(), {before[side], after[side]});
  return zeros;
}

Tensors conv(const OpInputs& in) {
  const Shape &before = in.list("before"), &after = in.list("after"), &stride = in.list("stride");
  const bool same = before == after;
  const Tensor x = same ? in.tensor(0) : torch::constant_pad_nd(in.tensor(0), around(before, after));
  const Shape none(before.size(), 0), ones(before.size(), 1);
  return {torch::convolution(x, in.tensor(1), in.tensor(2), stride, same ? before : none, ones, false, none, 1)};
}

Tensor per_channel(const Tensor& rows_BC, int64_t dims) {
  auto sizes = rows_BC.sizes().vec();
  sizes.resize(static_cast<size_t>(dims), 1);
  return rows_BC.view(sizes);
}

Tensors group_norm(const OpInputs& in) {
  const Tensor &x = in.tensor(0), &shift = in.tensor(3), &scale = in.tensor(4);
  Tensor y = torch::group_norm(x, in.whole("groups"), in.tensor(1), in.tensor(2), in.number("eps"));
  if (scale.defined()) y = y * (1 + per_channel(scale, y.dim())) + per_channel(shift, y.dim());
  return {in.flag("silu") ? torch::silu(y) : y};
}

struct Window {
  Shape stride, before, after;
};

class MapCases {
 public:
  explicit MapCases(const MakeScaledNumbers& leaf) : leaf_(leaf) {}

  Op::Case conv(const char* name, const Shape& x, const Shape& weight, const Window& window, bool bias = true) const {
    return {name, [leaf = leaf_, x, weight, window, bias](at::ScalarType dtype) -> OpInputs {
              double sum = 1;
              for (size_t i = 1; i < weight.size(); ++i) sum *= static_cast<double>(weight[i]);
              return {{leaf(x, 1, dtype, 1), leaf(weight, 2, dtype, 1 / std::sqrt(sum)),
                       bias ? leaf({weight[0]}, 3, dtype, 1) : Tensor()},
                      {{"stride", window.stride}, {"before", window.before}, {"after", window.after}}};
            }};
  }

  struct Then {
    bool modulated = false, silu = false;
    double mean = 0;
  };
  Op::Case norm(const char* name, const Shape& x, int64_t groups, const Then& then) const {
    return {name, [leaf = leaf_, x, groups, then](at::ScalarType dtype) -> OpInputs {
              const auto rows = [&](int64_t which) {
                return then.modulated ? leaf({x[0], x[1]}, which, dtype, 0.5) : Tensor();
              };
              const Tensor map = leaf(x, 1, torch::kDouble, 1).detach().add(then.mean).to(dtype).requires_grad_();
              return {{map, leaf({x[1]}, 2, dtype, 1), leaf({x[1]}, 3, dtype, 1), rows(4), rows(5)},
                      {{"groups", groups}, {"eps", 1e-5}, {"silu", then.silu}}};
            }};
  }
  // Of maps whose channels lie side by side.
  Op::Case last(Op::Case one) const {
    one.inputs = [first = one.inputs](at::ScalarType dtype) {
      auto in = first(dtype);
      Tensor& x = in.tensors[0];
      x = x.detach().movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_();
      return in;
    };
    return one;
  }

 private:
  const MakeScaledNumbers leaf_;
};

}  // namespace

std::vector<Op> map_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  const MapCases of(leaf);
  const Window same{{1, 1}, {1, 1}, {1, 1}};
  Op convolution{
      "conv",
      "x [B,C,...] of 1 to 3 sides, weight [N,C,kernel...], bias [N] or none; stride, before and after (zeros at a "
      "side's ends), one number a side -> [B,N,...]",
      {},
      conv,
      {of.conv("small", {2, 3, 6, 7}, {5, 3, 3, 3}, same),
       of.conv("places", {2, 16, 5, 4}, {24, 16, 1, 1}, {{1, 1}, {0, 0}, {0, 0}}),
       of.conv("no bias", {1, 8, 9, 9}, {16, 8, 3, 3}, same, false),
       of.conv("patches", {2, 4, 6, 8}, {6, 4, 2, 2}, {{2, 2}, {0, 0}, {0, 0}}),
       of.conv("zeros after", {2, 4, 6, 8}, {6, 4, 3, 3}, {{2, 2}, {0, 0}, {1, 1}}),
       of.conv("zeros before", {2, 4, 7, 5}, {3, 4, 3, 2}, {{1, 2}, {2, 1}, {0, 1}}),
       of.conv("one side", {2, 5, 11}, {7, 5, 4}, {{3}, {1}, {2}}),
       of.conv("video", {2, 3, 4, 5, 6}, {4, 3, 3, 1, 3}, {{1, 1, 2}, {2, 0, 1}, {0, 0, 1}}),
       of.last(of.conv("channels last", {2, 16, 8, 8}, {24, 16, 3, 3}, same))},
      tolerance};
  Op norm{
      "group_norm",
      "x [B,C,...], weight [C], bias [C], shift [B,C] and scale [B,C], both or none; groups, eps, silu -> GroupNorm, "
      "times (1 + scale) plus shift, and SiLU of that",
      {},
      group_norm,
      {of.norm("small", {2, 6, 4, 5}, 3, {}), of.norm("silu", {2, 6, 4, 5}, 2, {.silu = true}),
       of.norm("modulated", {3, 8, 5, 5}, 4, {.modulated = true}),
       of.norm("modulated, silu", {3, 12, 7, 3}, 4, {.modulated = true, .silu = true}),
       of.norm("one side", {2, 6, 37}, 3, {.silu = true}), of.norm("video", {2, 4, 3, 2, 5}, 2, {.modulated = true}),
       of.norm("no sides", {3, 16}, 4, {.modulated = true, .silu = true}),
       of.norm("blocks and rests", {2, 64, 19, 17}, 32, {.modulated = true, .silu = true}),
       of.norm("large mean", {2, 8, 9, 9}, 2, {.mean = 100}),
       of.last(of.norm("channels last", {2, 40, 9, 7}, 8, {.modulated = true, .silu = true})),
       of.last(of.norm("channels last, large mean", {2, 6, 11, 9}, 2, {.mean = 10}))},
      tolerance};
  std::vector<Op> list;
  list.push_back(std::move(convolution));
  list.push_back(std::move(norm));
  return list;
}

}  // namespace ditto
