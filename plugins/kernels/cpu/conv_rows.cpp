// Convolutions, transposed ones too, by LibTorch's. oneDNN is the fastest here, however a map lies: as rows their
// inputs need not be kept where the norm before them makes them again.
//
// And bf16 by those of fp32: what is multiplied and summed is in fp32, what is written in bf16 is rounded once. For
// processors that are slower at bf16 than at fp32, which the host measures (run.bf16_in_fp32). The score alone knows
// only of those without instructions for bf16, of which oneDNN has no convolution in it.
#include <algorithm>
#include <array>
#include <tuple>

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

// Where nothing is learned it is the reference's call.
int score_of_own(const ditto::OpCall& call) { return score(call) == 0 ? 0 : call.grad ? 2 : 1; }

Tensor in(at::ScalarType dtype, const Tensor& x) { return x.defined() ? x.detach().to(dtype) : Tensor(); }

// The call in a dtype. Zeros that are not the same at both ends are a part of the map.
struct Call {
  Call(const OpInputs& inputs, at::ScalarType dtype)
      : x(in(dtype, inputs.tensors[0])),
        weight(in(dtype, inputs.tensors[1])),
        bias(in(dtype, inputs.tensor(2))),
        stride(inputs.list("stride")),
        padding(inputs.list(inputs.has("padding") ? "padding" : "before")),
        none(stride.size(), 0),
        ones(stride.size(), 1),
        transposed(inputs.has("padding")) {
    if (transposed || padding == inputs.list("after")) return;
    const auto& after = inputs.list("after");
    std::vector<int64_t> zeros;  // of the last side first
    for (size_t side = stride.size(); side-- > 0;) zeros.insert(zeros.end(), {padding[side], after[side]});
    x = torch::constant_pad_nd(x, zeros);
    before = padding, padding = none;
  }
  Tensor y() const { return torch::convolution(x, weight, bias, stride, padding, ones, transposed, none, 1); }
  std::tuple<Tensor, Tensor, Tensor> back(const Tensor& grad, std::array<bool, 3> learns) const {
    const auto bias_sizes = bias.defined() ? at::OptionalIntArrayRef(bias.sizes()) : std::nullopt;
    return at::convolution_backward(grad, x, weight, bias_sizes, stride, padding, ones, transposed, none, 1, learns);
  }
  // Of the map alone, of what has zeros around it.
  Tensor without_zeros(Tensor grad, at::IntArrayRef sizes) const {
    for (size_t side = 0; side < before.size(); ++side)
      grad = grad.narrow(static_cast<int64_t>(side) + 2, before[side], sizes[side + 2]);
    return grad;
  }
  Tensor x, weight, bias;
  std::vector<int64_t> stride, padding, none, ones, before;
  bool transposed;
};

enum class Computed { as_it_is, in_fp32 };
at::ScalarType dtype_of(Computed computed, const OpInputs& inputs) {
  return computed == Computed::in_fp32 ? torch::kFloat : inputs.tensors[0].scalar_type();
}

ditto::KernelRow row_of(const char* op, Computed computed) {
  const auto forward = [computed](const OpInputs& inputs) -> Tensors {
    return {Call(inputs, dtype_of(computed, inputs)).y().to(inputs.tensors[0].scalar_type())};
  };
  const auto backward = [computed](const Tensors& grads, const OpInputs& inputs, const Tensors&) -> Tensors {
    const Tensor& x = inputs.tensors[0];
    const auto dtype = dtype_of(computed, inputs);
    const Call call(inputs, dtype);
    const auto learns = [&](size_t i) { return inputs.tensor(i).defined() && inputs.tensor(i).requires_grad(); };
    auto [dx, dweight, dbias] = call.back(in(dtype, grads[0]), {learns(0), learns(1), learns(2)});
    if (dx.defined()) dx = call.without_zeros(dx, x.sizes()).to(x.scalar_type());
    return {dx, dweight, dbias};  // those of parameters as they are summed
  };
  const bool wide = computed == Computed::in_fp32;
  // Of shapes alone LibTorch's gives shapes.
  ditto::KernelRow row{
      op, wide ? "in_fp32_libtorch" : "libtorch", wide ? score_in_fp32 : score_of_own, forward, backward, forward};
  row.reads_output = false;
  row.any_gradient = true;
  return row;
}

}  // namespace

ditto::KernelRow conv() { return row_of("conv", Computed::as_it_is); }
ditto::KernelRow conv_in_fp32() { return row_of("conv", Computed::in_fp32); }
ditto::KernelRow conv_transposed() { return row_of("conv_transposed", Computed::as_it_is); }
ditto::KernelRow conv_transposed_in_fp32() { return row_of("conv_transposed", Computed::in_fp32); }

}  // namespace ditto_cpu
