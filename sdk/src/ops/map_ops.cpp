// What layers over maps are made of: their meaning on ATen. `token_leaf`, in places, and the lists of leaves, in
// channels, say in what order an exact kernel sums; the references sum as ATen does. `bf16`: the factors of products,
// backward too, are rounded to it first.
//
// Legend: B samples, C channels, N channels that come out, P a map's places, of 1 to 3 sides.
#include "ops/map_ops.h"

#include <algorithm>
#include <cmath>

#include <torch/autograd.h>
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

struct Steps {
  Shape stride, padding;
  bool transposed;
};

Tensor convolved(const Tensor& x, const Tensor& weight, const Tensor& bias, const Steps& steps) {
  const Shape none(steps.stride.size(), 0), ones(steps.stride.size(), 1);
  return torch::convolution(x, weight, bias, steps.stride, steps.padding, ones, steps.transposed, none, 1);
}

Tensor in_bf16(const Tensor& x) { return x.to(torch::kBFloat16).to(x.scalar_type()); }

// A convolution of rounded factors, as are those of its two gradients.
struct RoundedConvolution : torch::autograd::Function<RoundedConvolution> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Steps& steps) {
    const Tensor x_rounded = in_bf16(x), weight_rounded = in_bf16(weight);
    ctx->save_for_backward({x_rounded, weight_rounded});
    ctx->saved_data["stride"] = steps.stride, ctx->saved_data["padding"] = steps.padding;
    ctx->saved_data["transposed"] = steps.transposed;
    return convolved(x_rounded, weight_rounded, {}, steps);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto stride = ctx->saved_data["stride"].toIntVector(), padding = ctx->saved_data["padding"].toIntVector();
    const Shape none(stride.size(), 0), ones(stride.size(), 1);
    const auto [dx, dweight, dbias] =
        at::convolution_backward(in_bf16(grads[0]), saved[0], saved[1], std::nullopt, stride, padding, ones,
                                 ctx->saved_data["transposed"].toBool(), none, 1, {true, true, false});
    return {dx, dweight, Tensor()};
  }
};

Tensor per_channel(const Tensor& rows, int64_t dims) {  // [B, C], or [1, C]
  auto sizes = rows.sizes().vec();
  sizes.resize(static_cast<size_t>(dims), 1);
  return rows.view(sizes);
}

Tensor convolution_of(const OpInputs& in, const Tensor& x, const Steps& steps) {
  const Tensor &weight = in.tensor(1), &bias = in.tensor(2);
  if (!in.flag("bf16")) return convolved(x, weight, bias, steps);
  const Tensor y = RoundedConvolution::apply(x, weight, steps);
  return bias.defined() ? y + per_channel(bias.unsqueeze(0), y.dim()) : y;
}

Tensors conv(const OpInputs& in) {
  const Shape &before = in.list("before"), &after = in.list("after"), &stride = in.list("stride");
  if (before == after) return {convolution_of(in, in.tensor(0), {stride, before, false})};
  return {convolution_of(in, torch::constant_pad_nd(in.tensor(0), around(before, after)),
                         {stride, Shape(before.size(), 0), false})};
}

Tensors conv_transposed(const OpInputs& in) {
  return {convolution_of(in, in.tensor(0), {in.list("stride"), in.list("padding"), true})};
}

Tensors group_norm(const OpInputs& in) {
  const Tensor &x = in.tensor(0), &shift = in.tensor(3), &scale = in.tensor(4);
  Tensor y = torch::group_norm(x, in.whole("groups"), in.tensor(1), in.tensor(2), in.number("eps"));
  if (scale.defined()) y = y * (1 + per_channel(scale, y.dim())) + per_channel(shift, y.dim());
  return {in.flag("silu") ? torch::silu(y) : y};
}

Tensors plus_rows(const OpInputs& in) { return {in.tensor(0) + per_channel(in.tensor(1), in.tensor(0).dim())}; }

struct Window {
  Shape stride, before, after;
};

class MapCases {
 public:
  explicit MapCases(const MakeScaledNumbers& leaf) : leaf_(leaf) {}

  using Attributes = std::map<std::string, Attribute>;
  Op::Case conv(const char* name, const Shape& x, const Shape& weight, const Window& window, bool bias = true,
                const Attributes& more = {}) const {
    Attributes all{{"stride", window.stride}, {"before", window.before}, {"after", window.after}};
    all.insert(more.begin(), more.end());
    return product(name, x, weight, bias ? weight[0] : 0, static_cast<double>(weight[0]), all);
  }
  Op::Case transposed(const char* name, const Shape& x, const Shape& weight, const Shape& stride, const Shape& padding,
                      bool bias = true, const Attributes& more = {}) const {
    Attributes all{{"stride", stride}, {"padding", padding}};
    all.insert(more.begin(), more.end());
    return product(name, x, weight, bias ? weight[1] : 0, static_cast<double>(weight[1]), all);
  }
  Op::Case rows(const char* name, const Shape& x) const {
    return {name, [leaf = leaf_, x](at::ScalarType dtype) -> OpInputs {
              return {{leaf(x, 1, dtype, 1), leaf({x[0], x[1]}, 2, dtype, 1)}};
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

 private:
  // A weight makes `out` channels; bias: as many numbers, none of 0.
  Op::Case product(const char* name, const Shape& x, const Shape& weight, int64_t bias, double out,
                   const Attributes& attributes) const {
    return {name, [leaf = leaf_, x, weight, bias, out, attributes](at::ScalarType dtype) -> OpInputs {
              const double terms = static_cast<double>(c10::multiply_integers(weight)) / out;
              return {{leaf(x, 1, dtype, 1), leaf(weight, 2, dtype, 1 / std::sqrt(terms)),
                       bias > 0 ? leaf({bias}, 3, dtype, 1) : Tensor()},
                      attributes};
            }};
  }
  const MakeScaledNumbers leaf_;
};

std::vector<Op> products(const MapCases& of, const std::function<double(at::ScalarType)>& tolerance) {
  const Window same{{1, 1}, {1, 1}, {1, 1}};
  const MapCases::Attributes runs_of_inputs{{"in_leaves", Shape{4, 16}}}, runs_of_outputs{{"out_leaves", Shape{3, 24}}},
      bf16{{"bf16", true}};
  Op convolution{
      "conv",
      "x [B,C,...] of 1 to 3 sides, weight [N,C,kernel...], bias [N] or none; stride, before and after (zeros at a "
      "side's ends), one number a side; token_leaf, in_leaves and out_leaves {U, w0, w1, ...}, bf16 -> [B,N,...]",
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
       of.conv("one place", {2, 5, 1, 1}, {7, 5, 3, 3}, same),
       of.conv("runs of inputs", {2, 16, 5, 4}, {6, 16, 3, 3}, same, true, runs_of_inputs),
       of.conv("runs of outputs", {2, 5, 5, 4}, {24, 5, 3, 3}, same, true, runs_of_outputs),
       of.conv("bf16", {2, 3, 6, 7}, {5, 3, 3, 3}, same, true, bf16),
       channels_last(of.conv("channels last", {2, 16, 8, 8}, {24, 16, 3, 3}, same))},
      tolerance};
  Op transposed{
      "conv_transposed",
      "x [B,C,...] of 1 to 3 sides, weight [C,N,kernel...], bias [N] or none; stride and padding, one number a side; "
      "token_leaf, in_leaves and out_leaves {U, w0, w1, ...}, bf16 -> [B,N,...], a side of n places has "
      "(n - 1) stride + kernel - 2 padding",
      {},
      conv_transposed,
      {of.transposed("small", {2, 3, 4, 5}, {3, 5, 3, 3}, {1, 1}, {1, 1}),
       of.transposed("twice", {2, 4, 5, 3}, {4, 6, 4, 4}, {2, 2}, {1, 1}),
       of.transposed("places", {2, 16, 5, 4}, {16, 24, 1, 1}, {1, 1}, {0, 0}),
       of.transposed("no bias", {1, 8, 5, 5}, {8, 16, 4, 4}, {2, 2}, {1, 1}, false),
       of.transposed("places that nothing reaches", {2, 4, 3, 4}, {4, 6, 2, 2}, {3, 3}, {0, 0}),
       of.transposed("sides of their own", {1, 5, 3, 2}, {5, 4, 3, 2}, {1, 2}, {2, 0}),
       of.transposed("one place", {2, 8, 1, 1}, {8, 3, 4, 4}, {2, 2}, {1, 1}),
       of.transposed("one side", {2, 5, 7}, {5, 4, 4}, {3}, {1}),
       of.transposed("video", {2, 3, 2, 3, 4}, {3, 4, 1, 3, 3}, {1, 2, 2}, {0, 1, 1}),
       of.transposed("blocks and rests", {2, 17, 9, 7}, {17, 33, 4, 4}, {2, 2}, {1, 1}),
       of.transposed("runs of inputs", {2, 16, 5, 4}, {16, 6, 4, 4}, {2, 2}, {1, 1}, true, runs_of_inputs),
       of.transposed("runs of outputs", {2, 5, 5, 4}, {5, 24, 4, 4}, {2, 2}, {1, 1}, true, runs_of_outputs),
       of.transposed("bf16", {2, 3, 4, 5}, {3, 5, 4, 4}, {2, 2}, {1, 1}, true, bf16),
       channels_last(of.transposed("channels last", {2, 16, 8, 8}, {16, 24, 4, 4}, {2, 2}, {1, 1}))},
      tolerance};
  for (Op* op : {&convolution, &transposed}) op->optional = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
  return {convolution, transposed};
}

}  // namespace

Op::Case channels_last(Op::Case one) {
  one.inputs = [first = one.inputs](at::ScalarType dtype) {
    auto in = first(dtype);
    Tensor& x = in.tensors[0];
    x = x.detach().movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_();
    return in;
  };
  return one;
}

std::vector<Op> map_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  const MapCases of(leaf);
  Op norm{
      "group_norm",
      "x [B,C,...], weight [C], bias [C], shift [B,C] and scale [B,C], both or none; groups, eps, silu, "
      "token_leaf -> GroupNorm, times (1 + scale) plus shift, and SiLU of that",
      {},
      group_norm,
      {of.norm("small", {2, 6, 4, 5}, 3, {}), of.norm("silu", {2, 6, 4, 5}, 2, {.silu = true}),
       of.norm("modulated", {3, 8, 5, 5}, 4, {.modulated = true}),
       of.norm("modulated, silu", {3, 12, 7, 3}, 4, {.modulated = true, .silu = true}),
       of.norm("one side", {2, 6, 37}, 3, {.silu = true}), of.norm("video", {2, 4, 3, 2, 5}, 2, {.modulated = true}),
       of.norm("no sides", {3, 16}, 4, {.modulated = true, .silu = true}),
       of.norm("blocks and rests", {2, 64, 19, 17}, 32, {.modulated = true, .silu = true}),
       of.norm("large mean", {2, 8, 9, 9}, 2, {.mean = 100}),
       channels_last(of.norm("channels last", {2, 40, 9, 7}, 8, {.modulated = true, .silu = true})),
       channels_last(of.norm("channels last, large mean", {2, 6, 11, 9}, 2, {.mean = 10}))},
      tolerance};
  Op rows{"add_channels",
          "x [B,C,...], rows [B,C]; token_leaf -> x + its row at every place",
          {},
          plus_rows,
          {of.rows("small", {2, 6, 4, 5}), of.rows("one side", {3, 5, 37}), of.rows("video", {2, 4, 3, 2, 5}),
           of.rows("no sides", {3, 16}), of.rows("one place", {2, 7, 1, 1}),
           of.rows("blocks and rests", {2, 33, 19, 17}), channels_last(of.rows("channels last", {2, 40, 9, 7}))},
          tolerance};
  norm.optional = rows.optional = {"token_leaf"};
  auto list = products(of, tolerance);
  list.push_back(std::move(norm));
  list.push_back(std::move(rows));
  list.push_back(resample_op(leaf, tolerance));
  return list;
}

}  // namespace ditto
