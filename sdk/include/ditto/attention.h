// Attention as models ask for it and strategies wrap it.
//
// Legend: B samples, T queries here, S keys, N heads, K head width.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include <torch/types.h>

#include <ditto/stream.h>

namespace ditto {

// Which keys a query sees.
enum class Pattern {
  full,      // all tokens of its sample
  spatial,   // all tokens of its frame
  temporal,  // the tokens at its row and column in all frames
  cross,     // keys of another sequence (text), under the stream's text mask
};

// All that an attention op needs besides q, k and v.
struct AttentionShape {
  Pattern pattern = Pattern::full;
  Grid grid;
  std::shared_ptr<const Packing> packing;  // pattern full: tokens see their own sample only
  // bool, along the keys that are given: true where a key counts; undefined: all do. In every pattern, and of packs. A
  // query that sees no key that counts gets numbers that are not finite.
  torch::Tensor key_mask_BS;
};

// q [B, T, N, K], k and v [B, S, N, K]; the result is as q. Scores are scaled by 1 / sqrt(K).
struct AttentionOp {
  // Differentiable. What Ulysses needs. Throws Error(shape) for a mask that is not [B, S].
  std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const AttentionShape&)>
      run;
  // Without autograd, pattern full, no packing: output, and log-sum-exp of the scores (natural, [B, N, T], fp32 for
  // half types). What a ring needs, with the next: the exact share of this k and v in the gradients (dq, dk, dv), given
  // the output and log-sum-exp over *all* keys. A query that sees none of these keys has output 0 and log-sum-exp -inf.
  std::function<std::pair<torch::Tensor, torch::Tensor>(const torch::Tensor& q, const torch::Tensor& k,
                                                        const torch::Tensor& v, const torch::Tensor& key_mask_BS)>
      forward;
  std::function<std::array<torch::Tensor, 3>(const torch::Tensor& grad, const torch::Tensor& q, const torch::Tensor& k,
                                             const torch::Tensor& v, const torch::Tensor& key_mask_BS,
                                             const torch::Tensor& out, const torch::Tensor& lse)>
      backward;
};

class OpTable;
// The innermost op: the patterns reduced to plain attention over rows, computed by the table's "attention" op.
DITTO_API AttentionOp plain_attention(const OpTable& table);

}  // namespace ditto
