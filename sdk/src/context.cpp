#include <ditto/context.h>

#include <algorithm>

#include <torch/torch.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

// The tokens of a pack that are here, sample by sample, each over the keys of its own row.
Tensor cross_of_pack(const AttentionOp& op, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionShape& shape, const Stream& stream) {
  const auto& packing = *stream.packing;
  if (k.size(0) != static_cast<int64_t>(packing.lengths.size()))
    throw Error(
        ErrorKind::shape, "cross-attention of a pack",
        "has keys of " + std::to_string(k.size(0)) + " rows for " + std::to_string(packing.lengths.size()) + " samples",
        "give the text one row for each sample of the pack");
  const int64_t first = q.size(1) == packing.sample_T.size(0) ? 0 : stream.first_token, last = first + q.size(1);
  Tensors parts;
  int64_t start = 0;
  for (size_t i = 0; i < packing.lengths.size(); start += packing.lengths[i++]) {
    const int64_t begin = std::max(start, first), end = std::min(start + packing.lengths[i], last);
    if (begin >= end) continue;
    const auto row = [i](const Tensor& x) { return x.defined() ? x.narrow(0, static_cast<int64_t>(i), 1) : x; };
    auto own = shape;
    own.key_mask_BS = row(shape.key_mask_BS);
    parts.push_back(op.run(q.narrow(1, begin - first, end - begin), row(k), row(v), own));
  }
  return torch::cat(parts, 1);
}

}  // namespace

Context::Context(std::shared_ptr<const OpTable> table, Random random_)
    : ops(*table), random(random_), attention_op(plain_attention(*table)), table_(std::move(table)) {}
Context::~Context() = default;

Tensor Context::attention(const Tensor& q, const Tensor& k, const Tensor& v, Pattern pattern, const Stream& stream) {
  count_attention(q, k, pattern, stream);
  AttentionShape shape{pattern, stream.grid, pattern == Pattern::cross ? nullptr : stream.packing, {}};
  if (pattern == Pattern::cross) shape.key_mask_BS = stream.condition.text_mask_BS;
  if (pattern == Pattern::cross && stream.packing) return cross_of_pack(attention_op, q, k, v, shape, stream);
  return attention_op.run(q, k, v, shape);
}

// Scores and their sums: each query with the keys that its pattern lets it see. Of a pack the pairs inside of samples.
void Context::count_attention(const Tensor& q, const Tensor& k, Pattern pattern, const Stream& stream) const {
  if (!flops) return;
  const auto queries = static_cast<double>(q.numel());
  auto keys = static_cast<double>(k.size(1));
  if (pattern == Pattern::spatial) keys /= static_cast<double>(stream.grid.frames);
  if (pattern == Pattern::temporal) keys = static_cast<double>(stream.grid.frames);
  if (pattern == Pattern::full && stream.packing) {
    double pairs = 0;
    for (const int64_t length : stream.packing->lengths) pairs += static_cast<double>(length * length);
    keys = pairs / static_cast<double>(stream.packing->sample_T.size(0));
  }
  count("attention", 4 * queries * keys);
}

Tensor Context::in_unit(const Unit& unit, const std::function<Tensor()>& body) {
  return unit_wrap ? unit_wrap(unit, body) : body();
}

Tensor Context::all_tokens(const Tensor& x, const Stream& stream) { return token_gather ? token_gather(x, stream) : x; }

Tensor Context::own_tokens(const Tensor& whole, const Tensor& like, const Stream& stream) {
  return whole.size(1) == like.size(1) ? whole : whole.narrow(1, stream.first_token, like.size(1));
}

Tensor Context::attention_unit(Linear& heads, Linear& rows, const Tensor& x,
                               const std::function<Tensor(const Tensor&)>& run) {
  return unit_runner ? unit_runner(heads, rows, x, run) : run(x);
}

Tensor Ops::norm_modulate(const Tensor& x_BTD, const Tensor& shift_SD, const Tensor& scale_SD, const Stream& stream,
                          double eps) const {
  return table_->run("norm_modulate", {{x_BTD, shift_SD, scale_SD, stream.sample_of_token()}, {eps}});
}

Tensor Ops::gated_residual(const Tensor& x_BTD, const Tensor& gate_SD, const Tensor& y_BTD,
                           const Stream& stream) const {
  return table_->run("gated_residual", {{x_BTD, gate_SD, y_BTD, stream.sample_of_token()}});
}

Tensor Ops::linear_gelu_tanh(const Tensor& x, const Linear& up, Context& ctx) const {
  if (up->before || up->after) return torch::gelu(up(x, ctx), "tanh");  // a strategy stands between the two
  ctx.count("linear", 2 * static_cast<double>(x.numel()) * static_cast<double>(up->weight.leaf().size(0)));
  return table_->run("linear_gelu_tanh", {{x.to(ctx.compute), up->weight(ctx), up->bias(ctx)}});
}

}  // namespace ditto
