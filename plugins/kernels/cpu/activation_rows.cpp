// Activations, alone and after a linear map.
#include <ditto/math/threads.h>

#include "elementwise.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

constexpr int64_t kGrain = 16 * 1024;  // numbers of a piece

template <class F>
void in_pieces(const Tensor& x, F of_piece) {  // (bytes before it, numbers)
  ditto::in_threads(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    of_piece(begin * x.element_size(), static_cast<size_t>(end - begin));
  });
}
const char* bytes(const Tensor& x) { return static_cast<const char*>(x.const_data_ptr()); }
char* place(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }

Tensor activated(Activation kind, const Tensor& whole) {
  const auto x = whole.contiguous();
  auto y = torch::empty_like(x);
  in_pieces(x, [&](int64_t at, size_t count) { activate(kind, bytes(x) + at, place(y) + at, count, storage_of(x)); });
  return y;
}

Tensor activated_back(Activation kind, const Tensor& whole, const Tensor& grad) {
  const Tensor x = whole.contiguous(), g = grad.contiguous();
  auto dx = torch::empty_like(x);
  in_pieces(x, [&](int64_t at, size_t count) {
    activate_back(kind, bytes(x) + at, bytes(g) + at, place(dx) + at, count, storage_of(x));
  });
  return dx;
}

ditto::KernelRow activation(const char* op, Activation kind, std::function<int(const ditto::OpCall&)> score) {
  ditto::KernelRow row{op,
                       "cpu_simd",
                       std::move(score),
                       [kind](const OpInputs& in) -> Tensors { return {activated(kind, in.tensors[0])}; },
                       [kind](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
                         return {activated_back(kind, in.tensors[0], grads[0])};
                       },
                       [](const OpInputs& in) -> Tensors {
                         return {torch::empty_like(in.tensors[0], torch::MemoryFormat::Contiguous)};
                       }};
  row.again = [kind](const OpInputs& in, const Tensors&) { return activated(kind, in.tensors[0]); };
  row.again_of = {0};
  return row;
}

// y, and what the activation was given.
Tensors map_and_gelu(const OpInputs& in) {
  const Tensor h = torch::linear(in.tensors[0], in.tensors[1], in.tensors[2]);
  return {activated(Activation::gelu_tanh, h), h};
}

Tensors map_and_gelu_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Tensor &x = in.tensors[0], &weight = in.tensors[1], &bias = in.tensors[2];
  const auto dh = activated_back(Activation::gelu_tanh, results[1], grads[0]).flatten(0, -2);
  Tensors back(3);
  if (x.requires_grad()) back[0] = torch::mm(dh, weight).view(x.sizes());
  if (weight.requires_grad()) back[1] = torch::mm(dh.t(), x.flatten(0, -2));
  if (bias.defined() && bias.requires_grad()) back[2] = dh.sum(0);
  return back;
}

}  // namespace

ditto::KernelRow silu() { return activation("silu", Activation::silu, score); }
ditto::KernelRow gelu() {
  return activation("gelu", Activation::gelu_tanh,
                    [](const ditto::OpCall& call) { return call.inputs.flag("tanh") ? score(call) : 0; });
}
ditto::KernelRow linear_gelu_tanh() {
  ditto::KernelRow row{
      "linear_gelu_tanh", "cpu_simd", score, map_and_gelu, map_and_gelu_back, [](const OpInputs& in) -> Tensors {
        auto shape = in.tensors[0].sizes().vec();
        shape.back() = in.tensors[1].size(0);
        const auto one = [&] { return torch::empty(shape, in.tensors[0].options().requires_grad(false)); };
        return {one(), one()};
      }};
  row.again = [](const OpInputs&, const Tensors& results) { return activated(Activation::gelu_tanh, results[1]); };
  return row;
}

}  // namespace ditto_cpu
