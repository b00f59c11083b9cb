// Linear maps, with GELU after them or without.
#include "row_calls.h"

namespace ditto_exact {

namespace {

std::vector<int64_t> with_last(const Tensor& x, int64_t size) {
  auto shape = x.sizes().vec();
  shape.back() = size;
  return shape;
}

bool can(const OpCall& call) {
  return fits_with_leaf(call) && call.inputs.tensor(0).dim() >= 2 && call.inputs.tensor(1).dim() == 2;
}

Tensor map(const Kernels& k, const OpInputs& in) {
  const Tensor x = in.tensor(0).contiguous(), weight = in.tensor(1).contiguous(),
               bias = in.tensor(2).defined() ? in.tensor(2).contiguous() : Tensor();
  const Index K = x.size(-1), N = weight.size(0);
  auto y = torch::empty(with_last(x, N), torch::kFloat);
  const Terms terms(in, "in_leaves", K);
  k.product({Tokens(x).rows(),
             N,
             K,
             {numbers(x), K, 1},
             {numbers(weight), 1, K},
             place(y),
             N,
             bias.defined() ? numbers(bias) : nullptr,
             terms.order(),
             in.flag("bf16")},
            workers());
  return y;
}

constexpr Index kTokens = 4096;  // of one product: beyond, panels do not stay in a processor's second cache

// [N, K]. Many samples: in runs of a power of two, which are nodes of the tree over samples.
Tensor weight_grad(const Kernels& k, const Tensor& x, const Tensor& grad, const OpInputs& in) {
  Tokens tokens(x);
  if (!in.has("token_leaf")) tokens.samples = tokens.rows(), tokens.tokens = 1;  // in any order
  const Index K = x.size(-1), N = grad.size(-1), T = tokens.tokens;
  Index run = 1;
  while (run < tokens.samples && 2 * run * T <= kTokens) run *= 2;
  const Index runs = most(1, parts(tokens.samples, run));
  const auto zeros = torch::zeros({K}, torch::kFloat);
  Tensors open;
  for (Index i = 0; i < runs; ++i) {
    const Index first = i * run, here = least(run, tokens.samples - first);
    open.push_back(torch::empty({N, K}, torch::kFloat));
    const Terms terms(row_leaves(in, here, T));
    k.product({N,
               K,
               here * T,
               {numbers(grad) + first * T * N, 1, N},
               {numbers(x) + first * T * K, K, 1},
               place(open.back()),
               K,
               numbers(zeros),
               terms.order(),
               in.flag("bf16")},
              workers());
    for (int merges = merges_after(i, runs); merges > 0; --merges) {
      const Tensor right = open.back();
      open.pop_back();
      const Tensor& left = open.back();
      in_parts(left.numel(), 1, [&](Index begin, Index end) {
        k.add(numbers(left) + begin, numbers(right) + begin, place(left) + begin, end - begin);
      });
    }
  }
  return open[0];
}

// Gradients of x, weight and bias from that of the map's output. Sums of gradients have a bias of +0.
Tensors map_back(const Kernels& k, const Tensor& grad, const OpInputs& in) {
  const Tensor x = in.tensor(0).contiguous(), weight = in.tensor(1).contiguous(), g = grad.contiguous();
  const Tokens tokens(x);
  const Index K = x.size(-1), N = weight.size(0), M = tokens.rows();
  const auto zeros = torch::zeros({K}, torch::kFloat);
  Tensors back(3);
  if (wanted(in, 0)) {
    back[0] = torch::empty(x.sizes(), torch::kFloat);
    const Terms terms(in, "out_leaves", N);
    k.product({M,
               K,
               N,
               {numbers(g), N, 1},
               {numbers(weight), K, 1},
               place(back[0]),
               K,
               numbers(zeros),
               terms.order(),
               in.flag("bf16")},
              workers());
  }
  if (wanted(in, 1)) back[1] = weight_grad(k, x, g, in);
  if (wanted(in, 2)) back[2] = sum_of_rows(k, {numbers(g)}, Tokens(g), row_leaves(in, tokens.samples, tokens.tokens));
  return back;
}

Tensor shape_of(const OpInputs& in) {
  return torch::empty(with_last(in.tensor(0), in.tensor(1).size(0)), in.tensor(0).options().requires_grad(false));
}

}  // namespace

KernelRow linear(const Kernels& k) {
  KernelRow row{"linear", k.variant};
  row.score = [&k](const OpCall& call) { return can(call) ? product_score(k, call) : 0; };
  row.forward = [&k](const OpInputs& in) -> Tensors { return {map(k, in)}; };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) { return map_back(k, grads[0], in); };
  row.shapes = [](const OpInputs& in) -> Tensors { return {shape_of(in)}; };
  row.knows = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
  row.reads_output = false;
  return row;
}

KernelRow linear_gelu_tanh(const Kernels& k) {
  const auto gelu = [&k](const Tensor& h) {
    auto y = torch::empty_like(h);
    in_parts(h.numel(), 1, [&](Index begin, Index end) { k.gelu(numbers(h) + begin, place(y) + begin, end - begin); });
    return y;
  };
  KernelRow row{"linear_gelu_tanh", k.variant};
  row.score = [&k](const OpCall& call) { return can(call) ? product_score(k, call) : 0; };
  row.forward = [&k, gelu](const OpInputs& in) -> Tensors {
    const auto h = map(k, in);
    return {gelu(h), h};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) {
    const auto g = grads[0].contiguous();
    auto dh = torch::empty_like(g);
    in_parts(g.numel(), 1, [&](Index begin, Index end) {
      k.gelu_back(numbers(results[1]) + begin, numbers(g) + begin, place(dh) + begin, end - begin);
    });
    return map_back(k, dh, in);
  };
  row.shapes = [](const OpInputs& in) -> Tensors { return {shape_of(in), shape_of(in)}; };
  row.knows = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
  row.again = [gelu](const OpInputs&, const Tensors& results) { return gelu(results[1]); };
  return row;
}

}  // namespace ditto_exact
