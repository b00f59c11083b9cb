// The ops a model can call by name: their meaning on ATen, their test cases and tolerances.
#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/math/random.h>

#include "ops/attention_ops.h"
#include "ops/expert_ops.h"
#include "ops/layer_ops.h"
#include "ops/map_ops.h"
#include "ops/update_ops.h"

namespace ditto {

using torch::Tensor;

namespace {

// A row of numbers for each sample -> one for each of its tokens, [B, 1, D], or [1, T, D] in a pack.
Tensor per_token(const Tensor& rows_SD, const Tensor& sample_T) {
  return sample_T.defined() ? rows_SD.index_select(0, sample_T).unsqueeze(0) : rows_SD.unsqueeze(1);
}

Tensors norm_modulate(const OpInputs& in) {
  const auto& t = in.tensors;
  const auto normed = torch::layer_norm(t[0], {t[0].size(-1)}, {}, {}, in.number("eps"));
  return {normed * (1 + per_token(t[2], t[3])) + per_token(t[1], t[3])};
}

Tensors gated_residual(const OpInputs& in) {
  const auto& t = in.tensors;
  return {torch::addcmul(t[0], per_token(t[1], t[3]), t[2])};
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
            return {{x, leaf({B, D}, 2, dtype), leaf({B, D}, 3, dtype, 0.5), sample}, {{"eps", 1e-6}}};
          }};
}

Op::Case gate_case(const char* name, int64_t B, int64_t T, int64_t D, bool packed) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            const auto sample = packed ? torch::arange(T).mul(B).floor_divide(T) : Tensor();
            const int64_t rows = packed ? 1 : B;
            return {{leaf({rows, T, D}, 1, dtype), leaf({B, D}, 2, dtype), leaf({rows, T, D}, 3, dtype), sample}};
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

std::vector<Op> modulation_ops() {
  std::vector<Op> list{
      {"norm_modulate",
       "x [B,T,D], shift [S,D], scale [S,D], sample [T] or none; eps, token_leaf -> [B,T,D]",
       {},
       norm_modulate,
       {modulate_case("small", 2, 5, 16, false), modulate_case("odd width", 3, 7, 37, false),
        modulate_case("width of a small model", 4, 64, 384, false), modulate_case("large mean", 2, 3, 128, false, 100),
        modulate_case("packed", 3, 11, 64, true)},
       rounding},
      {"gated_residual",
       "x [B,T,D], gate [S,D], y [B,T,D], sample [T] or none; token_leaf -> [B,T,D]",
       {},
       gated_residual,
       {gate_case("small", 2, 5, 16, false), gate_case("odd width", 3, 7, 37, false),
        gate_case("packed", 3, 11, 64, true)},
       rounding},
  };
  for (auto& op : list) op.optional = {"token_leaf"};
  return list;
}

// Each case again with its sums over tokens in leaves.
void add_cases_in_leaves(Op& op) {
  if (!op.optional.count("token_leaf")) return;
  for (size_t i = 0, count = op.cases.size(); i < count; ++i) {
    auto one = op.cases[i];
    one.name += ", in leaves";
    one.inputs = [whole = one.inputs](at::ScalarType dtype) {
      auto inputs = whole(dtype);
      inputs.attributes["token_leaf"] = int64_t{4};
      return inputs;
    };
    op.cases.push_back(std::move(one));
  }
}

std::vector<Op> define_ops() {
  auto list = modulation_ops();
  for (auto& op : layer_ops(leaf, rounding)) list.push_back(std::move(op));
  for (auto& op : map_ops(leaf, rounding)) list.push_back(std::move(op));
  for (auto& op : update_ops(leaf, rounding)) list.push_back(std::move(op));
  for (auto& op : expert_ops(leaf, rounding)) list.push_back(std::move(op));
  const auto of_attention = [](std::vector<int64_t> shape, int64_t which, at::ScalarType dtype) {
    return leaf(std::move(shape), which, dtype);
  };
  for (auto& op : attention_ops(of_attention, rounding)) list.push_back(std::move(op));
  for (auto& op : list) add_cases_in_leaves(op);
  return list;
}

}  // namespace

const std::vector<Op>& ops() {
  static const std::vector<Op> all = define_ops();  // holds no tensor
  return all;
}

}  // namespace ditto
