#include <ditto/context.h>

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

Context::Context(std::shared_ptr<const OpTable> table, Random random_)
    : ops(*table), random(random_), attention_op(plain_attention(*table)), table_(std::move(table)) {}
Context::~Context() = default;

Tensor Context::attention(const Tensor& q, const Tensor& k, const Tensor& v, Pattern pattern, const Stream& stream) {
  AttentionShape shape{pattern, stream.grid, pattern == Pattern::cross ? nullptr : stream.packing, {}};
  if (pattern == Pattern::cross) shape.key_mask_BS = stream.condition.text_mask_BS;
  return attention_op.run(q, k, v, shape);
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
  return table_->run("linear_gelu_tanh", {{x.to(ctx.compute), up->weight(ctx), up->bias(ctx)}});
}

}  // namespace ditto
