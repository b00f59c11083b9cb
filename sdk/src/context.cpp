#include <ditto/context.h>

#include <algorithm>
#include <cstdint>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/attention_of_nodes.h>

#include "tokens_here.h"

namespace ditto {

using torch::Tensor;

namespace {

// FNV-1a: draws are keyed by it.
std::uint32_t series_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

// One row of tokens [B, T, D], or the tokens of a pack that are here, drawn sample by sample: where a number is kept.
torch::Tensor kept(const Random& random, const torch::Tensor& x_BTD, const Sequence& tokens,
                   const std::vector<int64_t>& ids, double p, std::uint32_t series) {
  const int64_t first = tokens.first_token + tokens.region_offset, here = x_BTD.size(1), width = x_BTD.size(2);
  Tensors parts;
  const auto draw = [&](int64_t id, int64_t length, int64_t begin, int64_t end) {
    parts.push_back(
        random.uniform_block(Purpose::model_dropout, id, {length, width}, {begin, 0}, {end - begin, width}, series));
  };
  if (!tokens.packing) {
    for (const int64_t id : ids) draw(id, tokens.tokens(), first, first + here);
    return torch::stack(parts).ge(p);
  }
  int64_t start = 0;
  for (size_t i = 0; i < ids.size(); start += tokens.packing->lengths[i++]) {
    const int64_t length = tokens.packing->lengths[i];
    const int64_t begin = std::max(first, start), end = std::min(first + here, start + length);
    if (begin < end) draw(ids[i], length, begin - start, end - start);
  }
  return torch::cat(parts).unsqueeze(0).ge(p);
}

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
    const auto here = tokens_here(part);
    for (size_t i = 0; i < here.size(); ++i) pairs += here[i] * seen(call, i);
  }
  return pairs;
}

void check_dropout(const Tensor& x_BTD, double p, const Stream& stream, const Sequence& tokens, const std::string& name,
                   const std::string& sequence) {
  const auto refuse = [&](const std::string& found, const std::string& remedy) {
    throw Error(ErrorKind::shape, "dropout \"" + name + "\"", found, remedy);
  };
  if (!(p >= 0 && p < 1)) refuse("has p = " + std::to_string(p), "use a probability of at least 0 and below 1");
  const Tensor& field = sequence.empty() ? stream.x_BTD : stream.extra.at(sequence).tensor;
  if (x_BTD.sizes() != field.sizes())
    refuse("is of " + c10::str(x_BTD.sizes()) + ", where the stream's tokens are " + c10::str(field.sizes()),
           "drop whole tokens, as they are between layers: strategies cut what is inside of them");
  const auto samples = tokens.packing ? tokens.packing->lengths.size() : static_cast<size_t>(x_BTD.size(0));
  if (stream.ids.size() != samples)
    refuse("finds " + std::to_string(stream.ids.size()) + " sample ids for " + std::to_string(samples) + " samples",
           "draws are made by the batch's ids: give it one for each sample");
}

}  // namespace

Context::Context(std::shared_ptr<const OpTable> table, Random random_)
    : ops(*table), random(random_), attention_op(plain_attention(*table)), table_(std::move(table)) {}
Context::~Context() = default;

void Context::refuse_under_one(const std::string& what) const {
  if (token_leaf > 0)
    throw Error(ErrorKind::config, "run.numerics", "= \"one\" has no exact form of " + what,
                "set run.numerics = \"fast\", or leave it out");
}

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

Tensor Context::in_unit(const Unit& unit, const std::function<Tensor()>& body) {
  return unit_wrap ? unit_wrap(unit, body) : body();
}

Tensor Context::all_tokens(const Tensor& x, const Stream& stream) { return token_gather ? token_gather(x, stream) : x; }

Tensor Context::own_tokens(const Tensor& whole, const Tensor& like, const Stream& stream) {
  return whole.size(1) == like.size(1) ? whole : whole.narrow(1, stream.first_token, like.size(1));
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

Tensor Context::dropout(const Tensor& x_BTD, double p, const Stream& stream, const std::string& name,
                        const std::string& sequence) {
  const Sequence& tokens = stream.sequence(sequence);
  check_dropout(x_BTD, p, stream, tokens, name, sequence);
  if (phase != Phase::train || p == 0 || x_BTD.is_meta()) return x_BTD;
  const auto kept_BTD = kept(random, x_BTD, tokens, stream.ids, p, series_of(name));
  return x_BTD * kept_BTD.to(x_BTD.options().requires_grad(false)).div_(1 - p);
}

}  // namespace ditto
