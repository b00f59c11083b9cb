// What the context does of attention: calls of the op, counts, and whole sub-layers.
#include <ditto/nn/attention_unit.h>

#include <utility>

#include <ditto/context.h>
#include <ditto/parallel/attention_of_nodes.h>

#include "nn/tokens_here.h"

namespace ditto {

using torch::Tensor;

namespace {

// Keys that a query of a pack's sample sees.
int64_t seen(const AttentionCall& call, size_t sample) {
  const auto& first = call.parts[0];
  if (call.pattern == Pattern::cross) return first.key_lengths.empty() ? first.k.size(1) : first.key_lengths[sample];
  const auto& packing = *first.tokens.packing;
  if (call.pattern == Pattern::spatial) return packing.grids[sample].rows * packing.grids[sample].columns;
  if (call.pattern == Pattern::temporal) return packing.grids[sample].frames;
  int64_t keys = 0;
  for (const auto& part : call.parts) keys += part.tokens.packing->lengths[sample];
  return keys;
}

// Of the queries of a pack that are here, each with the keys that it sees.
int64_t pairs_of_pack(const AttentionCall& call) {
  int64_t pairs = 0;
  for (const auto& part : call.parts) {
    const auto here = tokens_here(part.tokens, part.q.size(1));
    for (size_t i = 0; i < here.size(); ++i) pairs += here[i] * seen(call, i);
  }
  return pairs;
}

}  // namespace

Tensors Context::attention(const AttentionCall& call) {
  // Keys of another sequence may have more heads here than a strategy leaves them (fastseq): the innermost op checks.
  if (call.pattern != Pattern::cross || call.parts.empty()) check_call(call);
  count_attention(call);
  if (token_leaf == 0) return attention_op.run(call);
  auto in_leaves = call;
  in_leaves.token_leaf = token_leaf;
  const auto& queries = ops.leaves().of_tokens(call.parts[0].tokens.tokens()).inside;
  return queries && call.pattern == Pattern::cross ? attention_of_nodes(in_leaves, queries, Keys::whole, attention_op)
                                                   : attention_op.run(in_leaves);
}

Tensor Context::attention(const Tensor& q, const Tensor& k, const Tensor& v, Pattern pattern, const Stream& stream) {
  AttentionPart part{q, k, v, stream, {}};
  if (pattern == Pattern::cross) {
    part.key_mask_BS = stream.condition.text_mask_BS;
    if (stream.packing) part.key_lengths = stream.condition.text_lengths;
  }
  return attention({.parts = {std::move(part)}, .pattern = pattern}).at(0);
}

// Scores and their sums: each query with the keys that its pattern lets it see. Of a pack the pairs inside of samples.
void Context::count_attention(const AttentionCall& call) const {
  if (!flops) return;
  const auto& first = call.parts[0];
  if (first.tokens.packing)
    return count("attention", 4 * static_cast<double>(first.q.size(2) * first.q.size(3) * pairs_of_pack(call)));
  double queries = 0, keys = 0;
  for (const auto& part : call.parts) {
    queries += static_cast<double>(part.q.numel());
    keys += static_cast<double>(part.k.size(1));
  }
  if (call.pattern == Pattern::spatial) keys /= static_cast<double>(first.tokens.grid.frames);
  if (call.pattern == Pattern::temporal) keys = static_cast<double>(first.tokens.grid.frames);
  count("attention", 4 * queries * keys);
}

Tensors Context::attention_unit(std::vector<AttentionUnitPart> parts, const RunUnit& run) {
  if (unit_runner) return unit_runner(parts, run);
  Tensors inputs;
  for (const auto& part : parts) inputs.push_back(part.x);
  return run(inputs);
}

Tensor Context::attention_unit(const Linear& heads, const Linear& rows, const Tensor& x,
                               const std::function<Tensor(const Tensor&)>& run) {
  return attention_unit({{heads, rows, x}}, [&](const Tensors& inputs) { return Tensors{run(inputs[0])}; }).at(0);
}

}  // namespace ditto
