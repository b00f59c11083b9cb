#include "kernels/kernel_answers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <torch/autograd.h>
#include <torch/types.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

OpInputs moved(const OpInputs& inputs, at::Device device, at::ScalarType dtype) {
  OpInputs out{{}, inputs.attributes};
  for (const Tensor& x : inputs.tensors) {
    if (!x.defined()) {
      out.tensors.emplace_back();
      continue;
    }
    Tensor copy = x.detach().to(device, x.is_floating_point() ? dtype : x.scalar_type(), false, true);
    out.tensors.push_back(copy.requires_grad_(x.requires_grad()));
  }
  return out;
}

std::string to_text(Strides strides) {
  switch (strides) {
    case Strides::own: return "as it is";
    case Strides::slice: return "a slice of something wider";
    case Strides::transposed: return "transposed";
    case Strides::swapped: return "with two dims swapped";
  }
  return {};
}

namespace {

Tensor room(at::IntArrayRef shape, const Tensor& like) {
  const auto options = like.options().requires_grad(false);
  return like.is_floating_point() ? torch::full(shape, NAN, options) : torch::zeros(shape, options);
}

// A tensor of these sizes whose strides grow as `order`, from the last to the first.
Tensor ordered(const Tensor& like, const std::vector<int64_t>& order) {
  std::vector<int64_t> shape, back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    shape.push_back(like.size(order[i])), back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return room(shape, like).permute(back);
}

Tensor place(const Tensor& like, Strides strides) {
  std::vector<int64_t> order(static_cast<size_t>(like.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (strides == Strides::slice) {
    auto shape = like.sizes().vec();
    for (auto& size : shape) size += 3;
    Tensor part = room(shape, like);
    for (int64_t d = 0; d < like.dim(); ++d) part = part.narrow(d, 1, like.size(d));
    return part;
  }
  if (strides == Strides::transposed && like.dim() == 1) return room({like.size(0), 2}, like).select(1, 0);
  if (strides == Strides::transposed) std::reverse(order.begin(), order.end());
  if (strides == Strides::swapped && like.dim() >= 3) std::swap(order.end()[-2], order.end()[-3]);
  return ordered(like, order);
}

// Numbers that every dtype has, so that the reference in fp64 is of the same ones.
Tensor numbers_of_all(const std::vector<int64_t>& shape) { return normal("grad", shape).to(at::kBFloat16); }

}  // namespace

Tensor laid(const Tensor& x, Strides strides) {
  if (!x.defined() || strides == Strides::own) return x;
  const torch::NoGradGuard no_grad;
  const Tensor there = place(x, strides);
  there.copy_(x.detach());
  return there.detach().requires_grad_(x.requires_grad());
}

OpInputs laid(const OpInputs& inputs, Strides strides) {
  OpInputs out{{}, inputs.attributes};
  for (const Tensor& x : inputs.tensors) out.tensors.push_back(laid(x, strides));
  return out;
}

Tensor own_grad(size_t, const Tensor& of) {
  return numbers_of_all(of.sizes().vec()).to(of.options().requires_grad(false));
}

Tensor expanded_grad(size_t, const Tensor& of) {
  const int64_t row = of.dim() > 1 ? of.size(-1) : 1;
  const Tensor numbers = room({of.numel() + row}, of);
  numbers.slice(0, 0, row).copy_(numbers_of_all({row}));
  std::vector<int64_t> strides(static_cast<size_t>(of.dim()), 0);
  if (of.dim() > 1) strides.back() = 1;
  return numbers.as_strided(of.sizes(), strides);
}

Answer answer(const Compute& compute, const OpInputs& inputs, const GradOf& grad) {
  Answer found;
  const torch::AutoGradMode mode(grad != nullptr);
  found.outputs = compute(inputs);
  if (!grad) return found;
  Tensors roots, grads;
  for (size_t i = 0; i < found.outputs.size(); ++i)
    if (found.outputs[i].requires_grad())
      roots.push_back(found.outputs[i]), grads.push_back(grad(i, found.outputs[i].detach()));
  if (!roots.empty()) torch::autograd::backward(roots, grads);
  for (const Tensor& x : inputs.tensors) found.grads.push_back(x.defined() ? x.grad() : Tensor());
  return found;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const auto bytes = [](const Tensor& x) { return x.detach().contiguous().reshape({-1}).view(torch::kByte); };
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && bytes(a).equal(bytes(b));
}

}  // namespace ditto::testing
