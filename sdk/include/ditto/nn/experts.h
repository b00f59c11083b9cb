// A mixture of experts.
//
// Legend: B samples, T tokens, D width, E experts, H hidden width, R rows: tokens, each once for every expert that
// takes it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include <ditto/nn/cut_layer.h>

namespace ditto {

// Which expert takes which token, and with what weight. Any number of rows for a token.
struct Routing {
  torch::Tensor token_R;   // int64: index into the B * T tokens at hand
  torch::Tensor expert_R;  // int64, 0 … E - 1
  torch::Tensor weight_R;  // differentiable
};

// E two-layer perceptrons with GELU (tanh form), of which each token sees those it is routed to:
// y = sum over its rows of weight * expert(x). A token without a row gets zero. Rows of one expert are computed in the
// order of tokens.
class DITTO_API ExpertsModule : public CutLayer {
 public:
  ExpertsModule(int64_t experts, int64_t width, int64_t hidden);
  ~ExpertsModule() override;
  // `route` is called with the tokens as they are here after `before`.
  torch::Tensor forward(const torch::Tensor& x_BTD, const std::function<Routing(const torch::Tensor& x_BTD)>& route,
                        Context& ctx);
  std::optional<int64_t> leaves_to_cut() const override { return hidden_leaves_.empty() ? 1 : hidden_leaves_[0]; }

  Parameter up, up_bias;      // [E, H, D], [E, H]: the hidden width may be cut by tensor, the experts by expert
  Parameter down, down_bias;  // [E, D, H], [E, D]
  const int64_t experts;      // of the whole layer; down_bias is added where `adds_bias`

 private:
  struct Weights {
    torch::Tensor up, up_bias, down, down_bias;
  };
  // Sorted by expert, count[i] of them for the i-th expert whose weights are here.
  struct SortedRows {
    torch::Tensor x_RD;
    std::vector<int64_t> count;
    torch::Tensor token_R;  // which tokens they are, `tokens` of each sample; undefined: nobody asks
    int64_t tokens;
  };
  // `weights`: of each rank that rows come from, or once for all of them.
  torch::Tensor of_tokens(const torch::Tensor& x_BTD, const Routing& routing, const std::vector<Weights>& weights,
                          Context& ctx);
  // As many rows, of whichever rank.
  torch::Tensor by_rank(const SortedRows& rows, const std::vector<Weights>& weights, Context& ctx) const;
  torch::Tensor run_rows(const SortedRows& rows, const Weights& weights, Context& ctx) const;
  torch::Tensor run_op(const SortedRows& rows, const Weights& weights, const std::vector<int64_t>& hidden_leaves,
                       Context& ctx) const;
  const std::vector<int64_t> hidden_leaves_;  // {U, H} of the op "experts"; none: one leaf
};

}  // namespace ditto
