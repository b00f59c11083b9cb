// The ops a model can call by name: their meaning on ATen, their test cases and tolerances.
#include <cmath>

#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/kernels.h>
#include <ditto/random.h>

namespace ditto {

using torch::Tensor;

namespace {

// A row of numbers for each sample -> one for each of its tokens, [B, 1, D], or [1, T, D] in a pack.
Tensor per_token(const Tensor& rows_SD, const Tensor& sample_T) {
  return sample_T.defined() ? rows_SD.index_select(0, sample_T).unsqueeze(0) : rows_SD.unsqueeze(1);
}

Tensor norm_modulate(const OpInputs& in) {
  const auto& t = in.tensors;
  const auto normed = torch::layer_norm(t[0], {t[0].size(-1)}, {}, {}, in.numbers.at(0));
  return normed * (1 + per_token(t[2], t[3])) + per_token(t[1], t[3]);
}

Tensor gated_residual(const OpInputs& in) {
  const auto& t = in.tensors;
  return torch::addcmul(t[0], per_token(t[1], t[3]), t[2]);
}

Tensor linear_gelu_tanh(const OpInputs& in) {
  const auto& t = in.tensors;
  return torch::gelu(torch::linear(t[0], t[1], t[2]), "tanh");
}

Tensor attention(const OpInputs& in) {
  const auto& t = in.tensors;
  const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(-1)));
  const auto q = t[0].transpose(1, 2) * scale, k = t[1].transpose(1, 2), v = t[2].transpose(1, 2);
  auto scores = torch::matmul(q, k.transpose(-2, -1));
  if (t[3].defined())
    scores = scores.masked_fill(t[3].bitwise_not().unsqueeze(1).unsqueeze(1), -std::numeric_limits<double>::infinity());
  return torch::matmul(torch::softmax(scores, -1), v).transpose(1, 2);
}

// Fixed numbers for the cases: the same on every machine. `which` keeps tensors of one case apart.
Tensor numbers(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype, double scale = 1) {
  const int64_t id[] = {which};
  return Random(7).normal(Purpose::noise, id, shape, torch::kDouble).squeeze(0).mul_(scale).to(dtype);
}

Tensor leaf(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype, double scale = 1) {
  return numbers(std::move(shape), which, dtype, scale).requires_grad_();
}

Op::Case modulate_case(const char* name, int64_t B, int64_t T, int64_t D, bool packed, double mean = 0) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            const auto sample = packed ? torch::arange(T).mul(B).floor_divide(T) : Tensor();
            const int64_t rows = packed ? 1 : B;
            auto x = numbers({rows, T, D}, 1, torch::kDouble).add_(mean).to(dtype).requires_grad_();
            return {{x, leaf({B, D}, 2, dtype), leaf({B, D}, 3, dtype, 0.5), sample}, {1e-6}};
          }};
}

Op::Case gate_case(const char* name, int64_t B, int64_t T, int64_t D, bool packed) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            const auto sample = packed ? torch::arange(T).mul(B).floor_divide(T) : Tensor();
            const int64_t rows = packed ? 1 : B;
            return {{leaf({rows, T, D}, 1, dtype), leaf({B, D}, 2, dtype), leaf({rows, T, D}, 3, dtype), sample}};
          }};
}

Op::Case linear_case(const char* name, int64_t rows, int64_t in, int64_t out) {
  return {
      name, [=](at::ScalarType dtype) -> OpInputs {
        return {{leaf({2, rows, in}, 1, dtype), leaf({out, in}, 2, dtype, 1 / std::sqrt(in)), leaf({out}, 3, dtype)}};
      }};
}

Op::Case attention_case(const char* name, int64_t B, int64_t T, int64_t S, int64_t N, int64_t K, bool masked) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            auto mask = masked ? torch::arange(S).unsqueeze(0).lt(torch::arange(B).add(S / 2).unsqueeze(1)) : Tensor();
            return {{leaf({B, T, N, K}, 1, dtype), leaf({B, S, N, K}, 2, dtype), leaf({B, S, N, K}, 3, dtype), mask}};
          }};
}

double rounding(at::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble: return 1e-12;
    case torch::kFloat: return 1e-5;
    case torch::kHalf: return 1e-2;
    default: return 4e-2;  // bf16: 8 bits, and sums of a few rounded terms
  }
}

std::vector<Op> define_ops() {
  return {
      {"norm_modulate",
       "x [B,T,D], shift [S,D], scale [S,D], sample [T] or none; eps -> [B,T,D]",
       {},
       norm_modulate,
       {modulate_case("small", 2, 5, 16, false), modulate_case("odd width", 3, 7, 37, false),
        modulate_case("width of a small model", 4, 64, 384, false), modulate_case("large mean", 2, 3, 128, false, 100),
        modulate_case("packed", 3, 11, 64, true)},
       rounding},
      {"gated_residual",
       "x [B,T,D], gate [S,D], y [B,T,D], sample [T] or none -> [B,T,D]",
       {},
       gated_residual,
       {gate_case("small", 2, 5, 16, false), gate_case("odd width", 3, 7, 37, false),
        gate_case("packed", 3, 11, 64, true)},
       rounding},
      {"linear_gelu_tanh",
       "x [B,T,D], weight [F,D], bias [F] -> [B,T,F]",
       {"linear", "gelu_tanh"},
       linear_gelu_tanh,
       {linear_case("small", 5, 16, 24), linear_case("odd", 7, 37, 41)},
       rounding},
      {"attention",
       "q [B,T,N,K], k [B,S,N,K], v [B,S,N,K], key mask [B,S] or none -> [B,T,N,K]",
       {},
       attention,
       {attention_case("self", 2, 9, 9, 3, 8, false), attention_case("cross, masked", 2, 5, 12, 2, 16, true)},
       rounding},
  };
}

}  // namespace

const std::vector<Op>& ops() {
  static const std::vector<Op> all = define_ops();  // holds no tensor
  return all;
}

const Op& op(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& one : ops()) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  const auto near = nearest(name, names);
  throw Error(ErrorKind::plugin, "op \"" + name + "\"", "is not defined",
              near.empty() ? "" : "did you mean \"" + near + "\"?");
}

}  // namespace ditto
