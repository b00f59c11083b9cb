// What experts and their routers are made of: their meaning on ATen.
//
// Legend: S samples, T tokens of each, N = S T, E experts, R rows (a token for each expert that takes it), sorted by
// expert and the tokens of one in their order, D width, H hidden width. `place` [R] says which of the N tokens a row
// is.
#include "ops/expert_ops.h"

#include <cmath>
#include <utility>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

Tensors softmax(const OpInputs& in) { return {torch::softmax(in.tensor(0), -1)}; }

Tensors row_total(const OpInputs& in) { return {in.tensor(0).sum(-1, true).expand_as(in.tensor(0))}; }

Tensors expert_balance(const OpInputs& in) {
  const auto means = in.tensor(0).mean(1).chunk(2, -1);
  return {(means[0] * means[1]).sum(-1)};
}

Tensors token_rows(const OpInputs& in) { return {in.tensor(0).index_select(0, in.tensor(1))}; }

Tensors combine_rows(const OpInputs& in) {
  const Tensor &rows = in.tensor(0), &order = in.tensor(2), &place = in.tensor(3);
  const auto weight = in.tensor(1).index_select(0, order).unsqueeze(-1).to(rows.scalar_type());
  return {torch::zeros({in.whole("tokens"), rows.size(1)}, rows.options().requires_grad(false))
              .index_add(0, place, rows * weight)};
}

Tensors experts(const OpInputs& in) {
  const Tensor &up = in.tensor(1), &up_bias = in.tensor(2), &down = in.tensor(3), &down_bias = in.tensor(4);
  const Tensor count = in.tensor(5).to(torch::kCPU);
  const std::vector<int64_t> counts(count.const_data_ptr<int64_t>(), count.const_data_ptr<int64_t>() + count.numel());
  const auto parts = in.tensor(0).split_with_sizes(counts);
  Tensors results;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto e = static_cast<int64_t>(i);
    const auto hidden = torch::gelu(linear_map(in, parts[i], up[e], up_bias[e]), "tanh");
    results.push_back(linear_map(in, hidden, down[e], down_bias.defined() ? down_bias[e] : Tensor()));
  }
  return {torch::cat(results)};
}

Tensors add_expert_rows(const OpInputs& in) {
  const Tensor &x = in.tensor(0), count = in.tensor(2).to(x.device());
  return {x + in.tensor(1).repeat_interleave(count, 0)};
}

using Shape = std::vector<int64_t>;

Tensor whole_numbers(const std::vector<int64_t>& list) { return torch::tensor(list, torch::kLong); }

class Cases {
 public:
  explicit Cases(const MakeScaledNumbers& leaf) : leaf_(leaf) {}

  Op::Case numbers(const std::string& name, const Shape& shape) const {
    return {name, [leaf = leaf_, shape](at::ScalarType dtype) -> OpInputs { return {{leaf(shape, 1, dtype, 1)}}; }};
  }
  // Some tokens twice, some not at all.
  Op::Case of_tokens(const std::string& name, int64_t N, int64_t D, const Shape& place) const {
    return {name, [leaf = leaf_, N, D, place](at::ScalarType dtype) -> OpInputs {
              return {{leaf({N, D}, 1, dtype, 1), whole_numbers(place)}};
            }};
  }
  Op::Case combined(const std::string& name, int64_t N, int64_t D, const Shape& place, const Shape& order) const {
    return {name, [leaf = leaf_, N, D, place, order](at::ScalarType dtype) -> OpInputs {
              const auto R = static_cast<int64_t>(place.size());
              return {{leaf({R, D}, 1, dtype, 1), leaf({R}, 2, dtype, 1), whole_numbers(order), whole_numbers(place)},
                      {{"tokens", N}}};
            }};
  }
  Op::Case with_rows(const std::string& name, int64_t D, int64_t T, const std::vector<Shape>& places) const {
    return {name, [leaf = leaf_, D, T, places](at::ScalarType dtype) -> OpInputs {
              const auto [counts, place] = in_order(places);
              const auto E = static_cast<int64_t>(counts.size()), R = static_cast<int64_t>(place.size());
              return {
                  {leaf({R, D}, 1, dtype, 1), leaf({E, D}, 2, dtype, 1), whole_numbers(counts), whole_numbers(place)},
                  {{"tokens", T}}};
            }};
  }
  struct Size {
    int64_t D, H, T;
    bool bias;
    Shape hidden_leaves;
    bool bf16 = false;
  };
  Op::Case experts(const std::string& name, const Size& size, const std::vector<Shape>& places) const {
    return {name, [leaf = leaf_, size, places](at::ScalarType dtype) {
              const auto [counts, place] = in_order(places);
              const auto E = static_cast<int64_t>(counts.size()), R = static_cast<int64_t>(place.size());
              const auto& [D, H, T, bias, hidden_leaves, bf16] = size;
              const auto scale = [](int64_t width) { return 1 / std::sqrt(static_cast<double>(width)); };
              OpInputs in{{leaf({R, D}, 1, dtype, 1), leaf({E, H, D}, 2, dtype, scale(D)), leaf({E, H}, 3, dtype, 1),
                           leaf({E, D, H}, 4, dtype, scale(H)), bias ? leaf({E, D}, 5, dtype, 1) : Tensor(),
                           whole_numbers(counts), whole_numbers(place)},
                          {{"tokens", T}}};
              if (!hidden_leaves.empty()) in.attributes["hidden_leaves"] = hidden_leaves;
              if (bf16) in.attributes["bf16"] = true;
              return in;
            }};
  }

 private:
  // How many rows each expert has, and the tokens of all of them.
  static std::pair<Shape, Shape> in_order(const std::vector<Shape>& places) {
    Shape counts, place;
    for (const auto& of_expert : places) {
      counts.push_back(static_cast<int64_t>(of_expert.size()));
      place.insert(place.end(), of_expert.begin(), of_expert.end());
    }
    return {counts, place};
  }

  const MakeScaledNumbers leaf_;
};

}  // namespace

std::vector<Op> expert_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  const Cases of(leaf);
  std::vector<Op> list;
  const auto add = [&](const char* name, const char* signature, Tensors (*reference)(const OpInputs&),
                       std::vector<Op::Case> cases, std::set<std::string> optional = {}) {
    Op op{name, signature, {}, reference, std::move(cases), tolerance};
    op.optional = std::move(optional);
    list.push_back(std::move(op));
  };
  add("softmax", "x -> softmax along the last dim", softmax,
      {of.numbers("small", {2, 5, 4}), of.numbers("odd", {3, 37}), of.numbers("one", {4, 1})});
  add("row_total", "x [...,K] -> at each of its places the sum of its row", row_total,
      {of.numbers("small", {2, 5, 4}), of.numbers("odd", {3, 37})});
  add("expert_balance", "x [S,T,2E], a token's probabilities, then its shares; token_leaf -> [S], sum of mean x mean",
      expert_balance, {of.numbers("small", {2, 5, 8}), of.numbers("odd", {3, 19, 6})}, {"token_leaf"});
  add("token_rows", "x [N,D], place int64 [R] -> [R,D]", token_rows,
      {of.of_tokens("small", 6, 16, {0, 2, 5, 1, 2, 4}), of.of_tokens("odd", 4, 37, {1, 2, 0, 1, 2, 1, 2})});
  add("combine_rows",
      "rows [R,D], weight [R], order int64 [R], whose weight a row has, place int64 [R]; tokens -> [N,D], of each "
      "token "
      "the sum of its rows times their weights",
      combine_rows,
      {of.combined("small", 6, 16, {0, 2, 5, 1, 2, 4}, {3, 1, 5, 0, 2, 4}),
       of.combined("odd", 4, 37, {1, 2, 0, 1, 2, 1, 2}, {0, 6, 1, 5, 2, 4, 3})});
  add("experts",
      "x [R,D], up [E,H,D], up_bias [E,H], down [E,D,H], down_bias [E,D] or none, count int64 [E] of each expert's "
      "rows, place int64 [R] or none; tokens T of a sample, token_leaf, hidden_leaves {U, H}, bf16 -> [R,D]",
      experts,
      {of.experts("small", {16, 24, 5, true, {}}, {{0, 3, 7}, {1, 2, 8, 9}, {3, 4}}),
       of.experts("odd, one without rows", {13, 37, 9, true, {}}, {{0, 1, 2, 9, 17, 26}, {}, {8, 9, 10}}),
       of.experts("no second bias, hidden runs", {16, 48, 6, false, {3, 48}}, {{0, 5, 6, 11}, {2, 5, 7}}),
       of.experts("bf16", {16, 24, 5, true, {}, true}, {{0, 3, 7}, {}, {1, 4}}),
       of.experts("many rows of a sample", {8, 8, 13, true, {}}, {{0, 1, 3, 4, 5, 6, 8, 9, 12, 14, 15, 25}, {38}})},
      {"token_leaf", "hidden_leaves", "bf16"});
  add("add_expert_rows",
      "x [R,D], rows [E,D], count int64 [E] of each expert's rows of x, place int64 [R] or none; tokens T of a sample, "
      "token_leaf -> [R,D], each row plus that of its expert",
      add_expert_rows,
      {of.with_rows("small", 16, 5, {{0, 3, 7}, {1, 2, 8, 9}, {3, 4}}),
       of.with_rows("odd, one without rows", 13, 9, {{0, 1, 2, 9, 17, 26}, {}, {8, 9, 10}})},
      {"token_leaf"});
  return list;
}

}  // namespace ditto
