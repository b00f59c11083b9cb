// bf16 by the kernels of fp32. Sums are in fp32, what is written in bf16 is rounded once. For processors that are
// slower at bf16 than at fp32, which the host measures (run.bf16_in_fp32). Scores alone know only of those without
// instructions for bf16, where oneDNN has no products of it and LibTorch's loop over them takes a hundred times as
// long.
#include <algorithm>
#include <set>

#include "row_calls.h"

namespace ditto_exact {

namespace {

constexpr auto kBf16 = torch::kBFloat16;

// oneDNN's products in bf16 take AVX-512, and its own instructions where there are some.
bool has_products_of_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return true;  // not known to be slow
#endif
}

Tensor widened(const Tensor& x) {
  if (!x.defined() || x.scalar_type() != kBf16) return x;
  return x.detach().to(torch::kFloat).set_requires_grad(x.requires_grad());
}
Tensors widened(Tensors list) {
  for (auto& x : list) x = widened(x);
  return list;
}
OpInputs widened(const OpInputs& in) { return {widened(in.tensors), in.attributes}; }

// Those with one of these numbers.
Tensors rounded(Tensors list, const std::set<size_t>& which) {
  for (const size_t i : which)
    if (i < list.size() && list[i].defined()) list[i] = list[i].to(kBf16);
  return list;
}

// `of` in bf16: these of its results, and gradients of these inputs. Others stay fp32: statistics, and the gradients of
// parameters, as they are summed.
KernelRow in_bf16(const KernelRow& of, const std::set<size_t>& results, const std::set<size_t>& inputs) {
  KernelRow row{of.op, std::string(of.variant).replace(0, std::string("exact").size(), "in_fp32")};
  row.score = [of](const OpCall& call) {
    const auto in_bf16 = [](const Tensor& x) {
      return !x.defined() || !x.is_floating_point() || x.scalar_type() == kBf16;
    };
    const auto& tensors = call.inputs.tensors;
    if (call.dtype != kBf16 || !std::all_of(tensors.begin(), tensors.end(), in_bf16)) return 0;
    const auto in = widened(call.inputs);
    if (of.score({call.op, in, torch::kFloat, call.device, call.grad}) == 0) return 0;
    return has_products_of_bf16() ? 1 : 15;
  };
  row.forward = [of, results](const OpInputs& in) { return rounded(of.forward(widened(in)), results); };
  row.backward = [of, inputs](const Tensors& grads, const OpInputs& in, const Tensors& kept) {
    return rounded(of.backward(widened(grads), widened(in), widened(kept)), inputs);
  };
  row.shapes = [of, results](const OpInputs& in) { return rounded(of.shapes(widened(in)), results); };
  row.knows = of.knows;
  row.reads_output = of.reads_output;
  return row;
}

}  // namespace

std::vector<KernelRow> bf16_rows(const Kernels& k) {
  const auto map = linear(k), map_gelu = linear_gelu_tanh(k);
  std::vector<KernelRow> rows{in_bf16(map, {0}, {0}), in_bf16(map_gelu, {0, 1}, {0}),
                              in_bf16(attention(k), {0}, {0, 1, 2}), in_bf16(experts(k), {0, 1}, {0})};
  // GELU of the rounded map, so that it can be made again.
  const auto gelu_of = [map_gelu](const Tensor& h) { return map_gelu.again({}, {Tensor(), widened(h)}).to(kBf16); };
  rows[1].forward = [map, gelu_of](const OpInputs& in) -> Tensors {
    const auto h = map.forward(widened(in))[0].to(kBf16);
    return {gelu_of(h), h};
  };
  rows[1].again = [gelu_of](const OpInputs&, const Tensors& results) { return gelu_of(results[1]); };
  return rows;
}

}  // namespace ditto_exact
