// Convolutions in bf16 by LibTorch's of fp32: what is multiplied and summed is in fp32, what is written in bf16 is
// rounded once. For processors that are slower at bf16 than at fp32, which the host measures (run.bf16_in_fp32). The
// score alone knows only of those without instructions for bf16, of which oneDNN has no convolution in it.
#include <algorithm>

#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

bool has_convolutions_of_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return true;  // not known to be slow
#endif
}

int score_in_fp32(const ditto::OpCall& call) {
  if (call.dtype != torch::kBFloat16 || score(call) == 0) return 0;
  return has_convolutions_of_bf16() ? 1 : 15;
}

Tensor widened(const Tensor& x) { return x.defined() ? x.detach().to(torch::kFloat) : Tensor(); }

// The call in fp32. Zeros that are not the same at both ends are a part of the map.
struct Call {
  explicit Call(const OpInputs& in)
      : x(widened(in.tensors[0])),
        weight(widened(in.tensors[1])),
        bias(widened(in.tensor(2))),
        stride(in.list("stride")),
        padding(in.list("before")),
        none(stride.size(), 0),
        ones(stride.size(), 1) {
    const auto& after = in.list("after");
    if (padding == after) return;
    std::vector<int64_t> zeros;  // of the last side first
    for (size_t side = stride.size(); side-- > 0;) zeros.insert(zeros.end(), {padding[side], after[side]});
    x = torch::constant_pad_nd(x, zeros);
    before = padding, padding = none;
  }
  // Of the map alone, of what has zeros around it.
  Tensor without_zeros(Tensor grad, at::IntArrayRef sizes) const {
    for (size_t side = 0; side < before.size(); ++side)
      grad = grad.narrow(static_cast<int64_t>(side) + 2, before[side], sizes[side + 2]);
    return grad;
  }
  Tensor x, weight, bias;
  std::vector<int64_t> stride, padding, none, ones, before;
};

Tensors conv(const OpInputs& in) {
  const Call call(in);
  return {torch::convolution(call.x, call.weight, call.bias, call.stride, call.padding, call.ones, false, call.none, 1)
              .to(torch::kBFloat16)};
}

Tensors conv_back(const Tensors& grads, const OpInputs& in, const Tensors&) {
  const Call call(in);
  const auto learns = [&](size_t i) { return in.tensor(i).defined() && in.tensor(i).requires_grad(); };
  const auto bias_sizes = call.bias.defined() ? at::OptionalIntArrayRef(call.bias.sizes()) : std::nullopt;
  auto [dx, dweight, dbias] =
      at::convolution_backward(widened(grads[0]), call.x, call.weight, bias_sizes, call.stride, call.padding, call.ones,
                               false, call.none, 1, {learns(0), learns(1), learns(2)});
  if (dx.defined()) dx = call.without_zeros(dx, in.tensors[0].sizes()).to(torch::kBFloat16);
  return {dx, dweight, dbias};  // those of parameters as they are summed
}

}  // namespace

ditto::KernelRow conv_in_fp32() {
  ditto::KernelRow row{"conv", "in_fp32_libtorch", score_in_fp32, conv, conv_back};
  row.reads_output = false;
  row.any_gradient = true;
  return row;
}

}  // namespace ditto_cpu
