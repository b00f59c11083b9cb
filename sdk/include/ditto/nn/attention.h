// Attention as models ask for it and strategies wrap it.
//
// Legend: B samples, T queries here, S keys, N heads, M heads of keys and values, K head width.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <torch/types.h>

#include <ditto/stream.h>

namespace ditto {

using Tensors = std::vector<torch::Tensor>;

// Which keys a query sees.
enum class Pattern {
  full,      // all tokens of its sample, of all sequences of the call
  spatial,   // all tokens of its frame
  temporal,  // the tokens at its row and column in all frames
  cross,     // keys of another sequence (text), whole on every rank; of a pack a row for each sample
};

// One of the sequences that attend together.
struct AttentionPart {
  torch::Tensor q, k, v;  // q [B, T, N, K]; k and v [B, S, M, K], S = T but in cross; head n sees head n M / N of keys
  Sequence tokens;        // whose they are: cut as that sequence is
  // bool, along the keys that are given: true where a key counts; undefined: all do. In every pattern, and of packs. A
  // query that sees no key that counts gets numbers that are not finite.
  torch::Tensor key_mask_BS;
  // Of a pack's samples, in cross: how many of its row's keys each one's queries see, the first ones; at least 1.
  // Empty: all of them.
  std::vector<int64_t> key_lengths = {};
};

struct AttentionCall {
  // Several see each other's tokens, as one sequence of them in this order, sample by sample in a pack (pattern full).
  std::vector<AttentionPart> parts;
  Pattern pattern = Pattern::full;
  bool causal = false;          // a query sees no key behind its own place (not cross)
  std::optional<double> scale;  // of the scores; none: 1 / sqrt(K)
  // Added to the scores: [1 or B, 1 or N, T, S] of whole sequences, in the order of parts, and N of the heads here.
  // Patterns full and cross, no packs. Ring refuses one that is learned.
  torch::Tensor bias;
  int64_t token_leaf = 0;  // set by the context, its own
};

class OpTable;

// The call, and what it is made of: what strategies wrap.
struct AttentionOp {
  // Differentiable. An output for each part, as its q. Throws Error(shape) for a call that makes no sense.
  std::function<Tensors(const AttentionCall&)> run;
  // The ops "attention_partial", "…_merge", "…_finish" and "…_backward" (kernels.h), for keys that come in blocks.
  const OpTable* table = nullptr;
};

// The innermost op: patterns, joint sequences and packs reduced to the table's "attention".
DITTO_API AttentionOp plain_attention(const OpTable& table);

// Throws Error(shape) for heads, masks, places or sequences that do not fit together.
DITTO_API void check_call(const AttentionCall& call);

}  // namespace ditto
