// Norms along the last dim, with weights of a layer or of a sample.
#include "row_calls.h"

namespace ditto_exact {

namespace {

constexpr Index kAll = Index{1} << 62;  // rows that share a layer's weight

// A norm of x by rows: y, and what backward needs besides inputs: reciprocal deviations, and means but of a root mean
// square.
struct ByRows {
  ByRows(const Tensor& input, const Tensor& weights, const Tensor& biases, float added)
      : x(input.contiguous()),
        weight(weights.defined() ? weights.contiguous() : Tensor()),
        bias(biases.defined() ? biases.contiguous() : Tensor()),
        rows(x),
        plus(added) {}

  Tensors forward(const Kernels& k, double eps, bool centred, Index sharing) const {
    Tensors results{torch::empty_like(x), torch::empty({rows.rows()}, torch::kFloat)};
    if (centred) results.push_back(torch::empty({rows.rows()}, torch::kFloat));
    const Norm norm{numbers(x),
                    weight.defined() ? numbers(weight) : nullptr,
                    bias.defined() ? numbers(bias) : nullptr,
                    place(results[0]),
                    centred ? place(results[2]) : nullptr,
                    place(results[1]),
                    rows.width,
                    sharing,
                    static_cast<float>(eps),
                    plus};
    in_parts(rows.rows(), rows.width, [&](Index begin, Index end) { k.norm(norm, begin, end); });
    return results;
  }

  Tensor dx(const Kernels& k, const Tensor& grad, const Tensors& results, Index sharing) const {
    auto dx = torch::empty_like(x);
    const NormBack back{numbers(x),
                        weight.defined() ? numbers(weight) : nullptr,
                        numbers(grad),
                        results.size() > 2 ? numbers(results[2]) : nullptr,
                        numbers(results[1]),
                        place(dx),
                        rows.width,
                        sharing,
                        plus};
    in_parts(rows.rows(), rows.width, [&](Index begin, Index end) { k.norm_back(back, begin, end); });
    return dx;
  }

  // What is summed for a weight's gradient: grad n.
  RowSum products(const Tensor& grad, const Tensors& results) const {
    return {numbers(grad), numbers(x), results.size() > 2 ? numbers(results[2]) : nullptr, numbers(results[1])};
  }

  Tensor x, weight, bias;
  Tokens rows;
  float plus;
};

Tensors shapes(const OpInputs& in, bool centred) {
  const auto options = in.tensor(0).options().requires_grad(false);
  Tensors results{torch::empty(in.tensor(0).sizes(), options), torch::empty({Tokens(in.tensor(0)).rows()}, options)};
  if (centred) results.push_back(torch::empty_like(results[1]));
  return results;
}

KernelRow row(const Kernels& k, const char* op) {
  KernelRow row{op, k.variant};
  row.score = [&k](const OpCall& call) {
    return fits_with_leaf(call) && call.inputs.tensor(0).dim() >= 2 ? k.score : 0;
  };
  row.knows = {"token_leaf"};
  row.reads_output = false;
  return row;
}

KernelRow modulating(const Kernels& k, const char* op) {
  auto made = row(k, op);
  made.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    return fits_with_leaf(call) && in.tensor(0).dim() >= 2 && !in.tensor(3).defined() &&
                   in.tensor(1).size(0) == in.tensor(0).size(0)
               ? k.score
               : 0;
  };
  return made;
}

}  // namespace

// Dims between the tokens' and the last (heads) belong to a token: their rows follow one another in its leaf. A weight
// is the layer's, or a row for each sample.
KernelRow rms_norm(const Kernels& k) {
  auto made = row(k, "rms_norm");
  const auto sharing = [](const ByRows& norm) { return norm.weight.dim() == 2 ? norm.rows.tokens : kAll; };
  made.forward = [&k, sharing](const OpInputs& in) {
    const ByRows norm(in.tensor(0), in.tensor(1), {}, 0);
    return norm.forward(k, in.number("eps"), false, sharing(norm));
  };
  made.backward = [&k, sharing](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const ByRows norm(in.tensor(0), in.tensor(1), {}, 0);
    const auto g = grads[0].contiguous();
    Tensors back(2);
    if (wanted(in, 0)) back[0] = norm.dx(k, g, results, sharing(norm));
    // Of a token.
    const Index rows = norm.x.dim() > 2 && norm.x.size(1) > 0 ? most(1, norm.rows.tokens / norm.x.size(1)) : 1;
    if (wanted(in, 1) && norm.weight.dim() == 2)
      back[1] = sums_of_samples(k, norm.products(g, results), norm.rows, token_leaf(in) * rows);
    else if (wanted(in, 1))
      back[1] = sum_of_rows(k, norm.products(g, results), norm.rows,
                            row_leaves(in, norm.rows.samples, norm.rows.tokens / rows, rows));
    return back;
  };
  made.shapes = [](const OpInputs& in) { return shapes(in, false); };
  return made;
}

KernelRow layer_norm(const Kernels& k) {
  auto made = row(k, "layer_norm");
  made.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    const bool whole = in.tensor(1).defined() || !in.tensor(2).defined();  // a bias goes with a weight
    return fits_with_leaf(call) && in.tensor(0).dim() >= 2 && whole ? k.score : 0;
  };
  made.forward = [&k](const OpInputs& in) {
    return ByRows(in.tensor(0), in.tensor(1), in.tensor(2), 0).forward(k, in.number("eps"), true, kAll);
  };
  made.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const ByRows norm(in.tensor(0), in.tensor(1), {}, 0);
    const auto g = grads[0].contiguous();
    Tensors back(3);
    if (wanted(in, 0)) back[0] = norm.dx(k, g, results, kAll);
    const auto cut = row_leaves(in, norm.rows.samples, norm.rows.tokens);
    if (wanted(in, 1)) back[1] = sum_of_rows(k, norm.products(g, results), norm.rows, cut);
    if (wanted(in, 2)) back[2] = sum_of_rows(k, {numbers(g)}, norm.rows, cut);
    return back;
  };
  made.shapes = [](const OpInputs& in) { return shapes(in, true); };
  return made;
}

KernelRow norm_modulate(const Kernels& k) {
  auto made = modulating(k, "norm_modulate");
  made.forward = [&k](const OpInputs& in) {
    const ByRows norm(in.tensor(0), in.tensor(2), in.tensor(1), 1);
    return norm.forward(k, in.number("eps"), true, norm.rows.tokens);
  };
  made.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const ByRows norm(in.tensor(0), in.tensor(2), {}, 1);
    const auto g = grads[0].contiguous();
    Tensors back(4);
    if (wanted(in, 0)) back[0] = norm.dx(k, g, results, norm.rows.tokens);
    if (wanted(in, 1)) back[1] = sums_of_samples(k, {numbers(g)}, norm.rows, token_leaf(in));
    if (wanted(in, 2)) back[2] = sums_of_samples(k, norm.products(g, results), norm.rows, token_leaf(in));
    return back;
  };
  made.shapes = [](const OpInputs& in) { return shapes(in, true); };
  made.again = [forward = made.forward](const OpInputs& in, const Tensors&) { return forward(in)[0]; };
  made.again_of = {0, 1, 2};
  return made;
}

KernelRow gated_residual(const Kernels& k) {
  auto made = modulating(k, "gated_residual");
  made.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), gate = in.tensor(1).contiguous(), y = in.tensor(2).contiguous();
    const Tokens rows(x);
    auto out = torch::empty_like(x);
    in_parts(rows.rows(), rows.width, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r)
        k.gate(numbers(x) + r * rows.width, numbers(gate) + r / rows.tokens * rows.width, numbers(y) + r * rows.width,
               place(out) + r * rows.width, rows.width);
    });
    return {out};
  };
  made.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor g = grads[0].contiguous(), gate = in.tensor(1).contiguous(), y = in.tensor(2).contiguous();
    const Tokens rows(g);
    Tensors back(4);
    if (wanted(in, 0)) back[0] = g;
    if (wanted(in, 1)) back[1] = sums_of_samples(k, {numbers(g), numbers(y)}, rows, token_leaf(in));
    if (!wanted(in, 2)) return back;
    back[2] = torch::empty_like(g);
    in_parts(rows.rows(), rows.width, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r)
        k.gate(nullptr, numbers(gate) + r / rows.tokens * rows.width, numbers(g) + r * rows.width,
               place(back[2]) + r * rows.width, rows.width);
    });
    return back;
  };
  made.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty(in.tensor(0).sizes(), in.tensor(0).options().requires_grad(false))};
  };
  return made;
}

}  // namespace ditto_exact
