// What layers, losses and optimizers are made of: their meaning on ATen. `token_leaf` and the lists of leaves say in
// what order an exact kernel sums; the references sum as ATen does. `bf16`: the factors of products, backward
// too, are rounded to it first.
//
// Legend: S samples, T tokens, K numbers that come in, N that come out, R rows of a table, D its width.
#include "ops/layer_ops.h"

#include <cmath>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/math/elementary.h>

namespace ditto {

using torch::Tensor;

namespace {

Tensor rounded(const Tensor& x) { return x.to(torch::kBFloat16).to(x.scalar_type()); }

// x weight^T of rounded factors, as are those of its two gradients.
struct RoundedMap : torch::autograd::Function<RoundedMap> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    const Tensor x_rounded = rounded(x), weight_rounded = rounded(weight);
    ctx->save_for_backward({x_rounded, weight_rounded});
    return torch::linear(x_rounded, weight_rounded);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor grad = rounded(grads[0]), rows = grad.flatten(0, -2);
    return {torch::matmul(grad, saved[1]), torch::mm(rows.t(), saved[0].flatten(0, -2))};
  }
};

}  // namespace

Tensor linear_map(const OpInputs& in, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!in.flag("bf16")) return bias.defined() ? torch::linear(x, weight, bias) : torch::linear(x, weight);
  const Tensor y = RoundedMap::apply(x, weight);
  return bias.defined() ? y + bias : y;
}

namespace {

Tensor linear_of(const OpInputs& in) { return linear_map(in, in.tensor(0), in.tensor(1), in.tensor(2)); }

Tensors linear(const OpInputs& in) { return {linear_of(in)}; }
Tensors linear_gelu_tanh(const OpInputs& in) { return {torch::gelu(linear_of(in), "tanh")}; }
// Without leaves: under run.numerics = "one" layers call its parts.
Tensors mlp_gelu_tanh(const OpInputs& in) {
  return {linear_map(in, linear_gelu_tanh(in).at(0), in.tensor(3), in.tensor(4))};
}
Tensors silu(const OpInputs& in) { return {torch::silu(in.tensor(0))}; }
Tensors gelu(const OpInputs& in) { return {torch::gelu(in.tensor(0), in.flag("tanh") ? "tanh" : "none")}; }

Tensors exp(const OpInputs& in) { return {torch::exp(in.tensor(0))}; }
Tensors log(const OpInputs& in) { return {torch::log(in.tensor(0))}; }
Tensors tanh(const OpInputs& in) { return {torch::tanh(in.tensor(0))}; }
Tensors sin(const OpInputs& in) { return {torch::sin(in.tensor(0))}; }
Tensors cos(const OpInputs& in) { return {torch::cos(in.tensor(0))}; }

Tensors rms_norm(const OpInputs& in) {
  const auto& x = in.tensor(0);
  const auto wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
  const auto normed = wide * torch::rsqrt(wide.square().mean(-1, true) + in.number("eps"));
  const auto& weight = in.tensor(1);
  if (weight.dim() == 1) return {normed * weight};
  std::vector<int64_t> shape(static_cast<size_t>(wide.dim()), 1);
  shape.front() = weight.size(0), shape.back() = weight.size(1);
  return {normed * weight.view(shape)};
}

Tensors layer_norm(const OpInputs& in) {
  const auto& weight = in.tensor(1);
  return {torch::layer_norm(in.tensor(0), weight.sizes(), weight, in.tensor(2), in.number("eps"))};
}

Tensors embedding_rows(const OpInputs& in) { return {in.tensor(0).index_select(0, in.tensor(1))}; }
Tensors add_row(const OpInputs& in) { return {in.tensor(0) + in.tensor(1)}; }
Tensors sample_mean(const OpInputs& in) { return {in.tensor(0).flatten(1).mean(1)}; }

Tensors adamw(const OpInputs& in) {
  const torch::NoGradGuard no_grad;
  const auto beta1 = in.number("beta1"), beta2 = in.number("beta2"), lr = in.number("lr");
  const auto step = static_cast<int64_t>(in.number("step"));
  const Tensor w = in.tensor(0), &g = in.tensor(1), m = in.tensor(2), v = in.tensor(3);
  w.mul_(1 - lr * in.number("weight_decay"));
  m.mul_(beta1).add_(g * (1 - beta1));
  v.mul_(beta2).add_(g * g * (1 - beta2));
  const auto spread = (v.sqrt() / std::sqrt(1 - elementary::power(beta2, step))).add_(in.number("eps"));
  w.sub_(m / spread * (lr / (1 - elementary::power(beta1, step))));
  return {w};
}

using Shape = std::vector<int64_t>;
using Attributes = std::map<std::string, Attribute>;

// A case of leaves of these shapes; an empty one is an undefined tensor. Weights [N, K] are as large as layers have
// them.
class Cases {
 public:
  explicit Cases(const MakeScaledNumbers& leaf) : leaf_(leaf) {}
  Op::Case operator()(const std::string& name, const std::vector<Shape>& shapes, Attributes attributes = {}) const {
    return {name, [leaf = leaf_, shapes, attributes = std::move(attributes)](at::ScalarType dtype) {
              OpInputs in{{}, attributes};
              for (size_t i = 0; i < shapes.size(); ++i) {
                const auto& shape = shapes[i];
                const double scale = i % 2 == 1 && shape.size() == 2 ? 1 / std::sqrt(static_cast<double>(shape[1])) : 1;
                in.tensors.push_back(shape.empty() ? Tensor() : leaf(shape, static_cast<int64_t>(i) + 1, dtype, scale));
              }
              return in;
            }};
  }
  // A table [R, D] and rows of it, some repeatedly.
  Op::Case rows(const std::string& name, int64_t R, int64_t D, int64_t n) const {
    return {name, [leaf = leaf_, R, D, n](at::ScalarType dtype) -> OpInputs {
              return {{leaf({R, D}, 1, dtype, 1), torch::arange(n).mul(3).remainder(R)}};
            }};
  }
  Op::Case update(const std::string& name, const Shape& shape, double weight_decay, double step) const {
    return {name, [leaf = leaf_, shape, weight_decay, step](at::ScalarType dtype) -> OpInputs {
              const auto numbers = [&](int64_t which, double scale) {
                return leaf(shape, which, dtype, scale).detach();
              };
              return {{numbers(1, 1), numbers(2, 0.1), numbers(3, 0.1), numbers(4, 0.1).square()},
                      {{"lr", 1e-2},
                       {"beta1", 0.9},
                       {"beta2", 0.999},
                       {"eps", 1e-8},
                       {"weight_decay", weight_decay},
                       {"step", step}}};
            }};
  }

 private:
  const MakeScaledNumbers leaf_;
};

}  // namespace

std::vector<Op> layer_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  const Cases of(leaf);
  const Attributes eps{{"eps", 1e-6}};
  using List = std::vector<int64_t>;
  const Attributes heads{{"out_leaves", List{2, 16, 8, 8}}}, runs{{"in_leaves", List{4, 32}}},
      both{{"in_leaves", List{3, 24, 12}}, {"out_leaves", List{5, 40}}}, bf16{{"bf16", true}};
  std::vector<Op> list;
  const auto add = [&](const char* name, const char* signature, Tensors (*reference)(const OpInputs&),
                       std::vector<Op::Case> cases, std::set<std::string> optional = {}) {
    Op op{name, signature, {}, reference, std::move(cases), tolerance};
    op.optional = std::move(optional);
    list.push_back(std::move(op));
  };
  const std::set<std::string> leaves{"token_leaf", "in_leaves", "out_leaves", "bf16"};
  add("linear",
      "x [S,...,K], weight [N,K], bias [N] or none; token_leaf, in_leaves and out_leaves {U, w0, w1, ...}, bf16 -> "
      "[S,...,N]",
      linear,
      {of("small", {{2, 5, 16}, {24, 16}, {24}}), of("odd", {{3, 7, 37}, {41, 37}, {41}}),
       of("conditions", {{5, 16}, {24, 16}, {24}}), of("no bias", {{2, 9, 16}, {24, 16}, {}}),
       of("tiles and rests", {{3, 67, 70}, {102, 70}, {102}}), of("runs of inputs", {{3, 9, 32}, {24, 32}, {24}}, runs),
       of("heads of outputs", {{3, 9, 16}, {32, 16}, {32}}, heads),
       of("runs of both", {{3, 9, 36}, {40, 36}, {40}}, both), of("bf16", {{3, 9, 37}, {41, 37}, {41}}, bf16)},
      leaves);
  add("linear_gelu_tanh", "x [B,T,D], weight [F,D], bias [F]; token_leaf, in_leaves, out_leaves, bf16 -> [B,T,F]",
      linear_gelu_tanh,
      {of("small", {{2, 5, 16}, {24, 16}, {24}}), of("odd", {{2, 7, 37}, {41, 37}, {41}}),
       of("tiles and rests", {{3, 67, 70}, {102, 70}, {102}}), of("runs of both", {{3, 9, 36}, {40, 36}, {40}}, both),
       of("bf16", {{2, 3, 16}, {24, 16}, {24}}, bf16)},
      leaves);
  list.back().contains = {"linear", "gelu_tanh"};
  add("mlp_gelu_tanh", "x [S,...,K], weight1 [H,K], bias1 [H], weight2 [N,H], bias2 [N] or none -> [S,...,N]",
      mlp_gelu_tanh,
      {of("small", {{2, 5, 16}, {24, 16}, {24}, {16, 24}, {16}}),
       of("odd", {{2, 7, 37}, {41, 37}, {41}, {37, 41}, {37}}),
       of("conditions", {{5, 16}, {24, 16}, {24}, {8, 24}, {8}}),
       of("no second bias", {{2, 9, 16}, {24, 16}, {24}, {16, 24}, {}}),
       of("tiles and rests", {{3, 67, 70}, {104, 70}, {104}, {70, 104}, {70}})});
  list.back().contains = {"linear_gelu_tanh", "linear"};
  const auto large = [&](Attributes attributes) -> Op::Case {
    return {"large", [leaf, attributes = std::move(attributes)](at::ScalarType dtype) -> OpInputs {
              return {{leaf({3, 37}, 1, dtype, 100)}, attributes};
            }};
  };
  add("silu", "x -> x / (1 + e^-x)", silu, {of("small", {{2, 5, 16}}), of("odd", {{3, 37}}), large({})});
  add("gelu", "x; tanh -> GELU(x), in the tanh form or by the error function", gelu,
      {of("tanh", {{2, 5, 37}}, {{"tanh", true}}), of("error function", {{2, 5, 37}}, {{"tanh", false}}),
       large({{"tanh", true}}), large({{"tanh", false}})});
  const auto positive = [&](const char* name, const Shape& shape) -> Op::Case {
    return {name, [leaf, shape](at::ScalarType dtype) -> OpInputs {
              return {{leaf(shape, 1, dtype, 1).detach().abs().add(0.1).requires_grad_()}};
            }};
  };
  add("exp", "x -> e^x", exp, {of("small", {{2, 5, 16}}), of("odd", {{3, 37}})});
  add("log", "x -> its natural logarithm", log, {positive("small", {2, 5, 16}), positive("odd", {3, 37})});
  add("tanh", "x -> its hyperbolic tangent", tanh, {of("small", {{2, 5, 16}}), of("odd", {{3, 37}})});
  add("sin", "x, in radians -> its sine", sin, {of("small", {{2, 5, 16}}), of("odd", {{3, 37}})});
  add("cos", "x, in radians -> its cosine", cos, {of("small", {{2, 5, 16}}), of("odd", {{3, 37}})});
  add("rms_norm", "x [S,...,K], weight [K] or [S,K]; eps, token_leaf -> x / sqrt(mean x^2 + eps) weight, at least fp32",
      rms_norm,
      {of("small", {{2, 5, 16}, {16}}, eps), of("heads", {{3, 7, 2, 12}, {12}}, eps), of("odd", {{3, 37}, {37}}, eps),
       of("a weight a sample", {{3, 7, 12}, {3, 12}}, eps)},
      {"token_leaf"});
  add("layer_norm", "x [S,...,K], weight [K], bias [K]; eps, token_leaf -> [S,...,K]", layer_norm,
      {of("small", {{2, 5, 16}, {16}, {16}}, eps), of("odd", {{3, 7, 37}, {37}, {37}}, eps)}, {"token_leaf"});
  add("embedding_rows", "table [R,D], index int64 [S] -> [S,D]", embedding_rows,
      {of.rows("small", 7, 16, 5), of.rows("repeated", 3, 37, 11)});
  add("add_row", "x [S,...,D1,...], row [D1,...]; token_leaf -> x + row", add_row,
      {of("tokens", {{3, 9, 16}, {16}}), of("samples", {{5, 37}, {37}}), of("two dims", {{3, 2, 16}, {2, 16}})},
      {"token_leaf"});
  add("sample_mean", "x [S,...] -> each sample's mean [S]", sample_mean,
      {of("small", {{2, 3, 5, 7}}), of("one row", {{1, 64}}), of("long", {{3, 1000}})});
  add("adamw", "w, g, m, v, all but g updated in place; lr, beta1, beta2, eps, weight_decay, step -> w", adamw,
      {of.update("first", {5, 7}, 0, 1), of.update("later", {37}, 0.1, 100)});
  return list;
}

}  // namespace ditto
