// Linear maps in fp32 with the bits of the kernels `exact`: sums in the same order, forward and backward.
#include <algorithm>

#include <ditto/exact/terms.h>

#include "rows.h"

namespace ditto_cuda {

namespace {

using ditto::exact::Run;
using ditto::exact::Terms;
using ditto::exact::Tokens;

bool can(const OpCall& call) {
  const auto& in = call.inputs;
  return fits(call) && call.dtype == torch::kFloat && in.tensor(0).dim() >= 2 && in.tensor(1).dim() == 2 &&
         in.tensor(0).numel() > 0 && ditto::exact::token_leaf(in) > 0;
}

template <class T>
Tensor on_gpu(const std::vector<T>& list, const Tensor& like) {
  const auto bytes = static_cast<int64_t>(list.size() * sizeof(T));
  return torch::from_blob(const_cast<T*>(list.data()), {bytes}, torch::kByte).to(like.device());
}

Index most_open(const std::vector<Leaf>& leaves) {
  Index open = 0, most = 0;
  for (const auto& leaf : leaves) most = std::max(most, open), open += 1 - leaf.merges;
  return most;
}

// C [M, N] of views of A and B.
struct Factors {
  Index M, N, K;
  View a, b;
};
Tensor product(const Factors& of, const Terms& terms, const Tensor& bias, bool bf16, const Tensor& like) {
  std::vector<Index> places;
  if (terms.runs.size() > 1)
    for (const Run& run : terms.runs)
      for (Index i = 0; i < run.length; ++i) places.push_back(run.start + i);
  const Index open_nodes = most_open(terms.cut);
  const Tensor c = room({of.M, of.N}, like), leaves = on_gpu(terms.cut, like), order = on_gpu(places, like),
               nodes = room({open_room(of.M, of.N, open_nodes)}, like);
  launched(exact_product(
               {of.M, of.N, of.K, of.a, of.b, floats(c), of.N, floats(bias),
                places.empty() ? nullptr : static_cast<const Index*>(numbers(order)),
                static_cast<const Leaf*>(numbers(leaves)), static_cast<Index>(terms.cut.size()), bf16, floats(nodes)},
               open_nodes, stream_of(like)),
           "exact_product");
  return c;
}

const float* at(const Tensor& x) { return x.const_data_ptr<float>(); }

Tensor map(const OpInputs& in) {
  const Tensor x = laid(in.tensor(0)), weight = laid(in.tensor(1)), bias = laid(in.tensor(2));
  const Index K = x.size(-1), N = weight.size(0);
  auto sizes = x.sizes().vec();
  sizes.back() = N;
  return product({x.numel() / K, N, K, {at(x), K, 1}, {at(weight), 1, K}}, Terms(in, "in_leaves", K), bias,
                 in.flag("bf16"), x)
      .view(sizes);
}

// Gradients of x, weight and bias. Sums of gradients have a bias of +0. That of the bias is a product with ones: a
// fused multiply-add with one is an addition.
Tensors map_back(const Tensor& grad, const OpInputs& in) {
  const Tensor x = laid(in.tensor(0)), weight = laid(in.tensor(1)), g = laid(grad);
  const Tokens tokens(x);
  const Index K = x.size(-1), N = weight.size(0), M = tokens.rows();
  const bool bf16 = in.flag("bf16");
  const auto zeros = [&](Index count) { return torch::zeros({count}, g.options()); };
  const Terms over_rows(ditto::exact::row_leaves(in, tokens.samples, tokens.tokens));
  Tensors back(3);
  if (wanted(in, 0))
    back[0] = product({M, K, N, {at(g), N, 1}, {at(weight), K, 1}}, Terms(in, "out_leaves", N), zeros(K), bf16, g)
                  .view(x.sizes());
  if (wanted(in, 1)) back[1] = product({N, K, M, {at(g), 1, N}, {at(x), K, 1}}, over_rows, zeros(K), bf16, g);
  if (wanted(in, 2)) {
    const Tensor ones = torch::ones({M}, g.options());
    back[2] = product({1, N, M, {at(ones), M, 1}, {at(g), N, 1}}, over_rows, zeros(N), false, g).view({N});
  }
  return back;
}

KernelRow row(const char* op) {
  KernelRow row{op, "cuda_exact"};
  // By name only: a GPU's other products are much faster.
  row.score = [](const OpCall& call) { return can(call) ? 1 : 0; };
  row.knows = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
  row.exact = true;
  return row;
}

Tensor of_map(const OpInputs& in) {
  auto sizes = in.tensor(0).sizes().vec();
  sizes.back() = in.tensor(1).size(0);
  return room(sizes, in.tensor(0));
}

}  // namespace

KernelRow exact_linear() {
  auto made = row("linear");
  made.forward = [](const OpInputs& in) -> Tensors { return {map(in)}; };
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors&) { return map_back(grads[0], in); };
  made.shapes = [](const OpInputs& in) -> Tensors { return {of_map(in)}; };
  made.reads_output = false;
  return made;
}

KernelRow exact_linear_gelu_tanh() {
  const auto gelu_of = [](const Tensor& h) {
    const Tensor y = torch::empty_like(h);
    launched(apply(Function::gelu_tanh, numbers(h), place(y), h.numel(), Storage::fp32, stream_of(h)), "apply");
    return y;
  };
  auto made = row("linear_gelu_tanh");
  made.forward = [gelu_of](const OpInputs& in) -> Tensors {
    const Tensor h = map(in);
    return {gelu_of(h), h};
  };
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors& results) {
    const Tensor h = laid(results[1]), g = laid(grads[0]), dh = torch::empty_like(h);
    launched(apply_back(Function::gelu_tanh, numbers(h), numbers(g), place(dh), h.numel(), Storage::fp32, stream_of(h)),
             "apply_back");
    return map_back(dh, in);
  };
  made.shapes = [](const OpInputs& in) -> Tensors { return {of_map(in), of_map(in)}; };
  made.again = [gelu_of](const OpInputs&, const Tensors& results) { return gelu_of(results[1]); };
  return made;
}

}  // namespace ditto_cuda
