// The table's ops as layers and models call them. What only run.numerics = "one" asks for, leaves of tokens and of a
// layer's sums, is said under it alone: fast kernels need not know it.
#include <torch/types.h>

#include <ditto/context.h>

namespace ditto {

using torch::Tensor;

std::map<std::string, Attribute> Ops::of_tokens(std::map<std::string, Attribute> attributes) const {
  if (*token_leaf_ > 0) attributes["token_leaf"] = *token_leaf_;
  return attributes;
}

namespace {

void put(const SumLeaves& leaves, std::map<std::string, Attribute>& attributes) {
  if (!leaves.in.empty()) attributes["in_leaves"] = leaves.in;
  if (!leaves.out.empty()) attributes["out_leaves"] = leaves.out;
}

}  // namespace

Tensor Ops::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const SumLeaves& leaves) const {
  OpInputs in{{x, weight, bias}, of_tokens()};
  if (*token_leaf_ > 0) put(leaves, in.attributes);
  return table_->run("linear", in).at(0);
}

Tensor Ops::silu(const Tensor& x) const { return table_->run("silu", {{x}}).at(0); }

Tensor Ops::gelu(const Tensor& x, bool tanh) const { return table_->run("gelu", {{x}, {{"tanh", tanh}}}).at(0); }

Tensor Ops::rms_norm(const Tensor& x, const Tensor& weight, double eps) const {
  return table_->run("rms_norm", {{x, weight}, of_tokens({{"eps", eps}})}).at(0);
}

Tensor Ops::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) const {
  return table_->run("layer_norm", {{x, weight, bias}, of_tokens({{"eps", eps}})}).at(0);
}

Tensor Ops::embedding_rows(const Tensor& table, const Tensor& index_B) const {
  return table_->run("embedding_rows", {{table, index_B}}).at(0);
}

Tensor Ops::add_row(const Tensor& x, const Tensor& row) const {
  return table_->run("add_row", {{x, row}, of_tokens()}).at(0);
}

Tensor Ops::sample_mean(const Tensor& x) const { return table_->run("sample_mean", {{x}}).at(0); }

namespace {

// All rows of tokens as one, of a pack whose samples are the frames.
Tensor as_row(const Tensor& x_BTD) { return x_BTD.flatten(0, 1).unsqueeze(0); }
Sequence frames_of(const Tensor& x_BTD, const Sequence& tokens) {
  Sequence frames;
  frames.packing =
      std::make_shared<const Packing>(Packing{{}, tokens.frame_of_token(x_BTD.size(0), x_BTD.size(1), x_BTD.device())});
  return frames;
}

}  // namespace

Tensor Ops::norm_modulate(const Tensor& x_BTD, const Tensor& shift_SD, const Tensor& scale_SD, const Sequence& tokens,
                          double eps) const {
  if (shift_SD.dim() == 3)
    return norm_modulate(as_row(x_BTD), shift_SD.flatten(0, 1), scale_SD.flatten(0, 1), frames_of(x_BTD, tokens), eps)
        .reshape(x_BTD.sizes());
  return table_
      ->run("norm_modulate",
            {{x_BTD, shift_SD, scale_SD, tokens.sample_of_token(x_BTD.size(1))}, of_tokens({{"eps", eps}})})
      .at(0);
}

Tensor Ops::gated_residual(const Tensor& x_BTD, const Tensor& gate_SD, const Tensor& y_BTD,
                           const Sequence& tokens) const {
  if (gate_SD.dim() == 3)
    return gated_residual(as_row(x_BTD), gate_SD.flatten(0, 1), as_row(y_BTD), frames_of(x_BTD, tokens))
        .reshape(x_BTD.sizes());
  return table_->run("gated_residual", {{x_BTD, gate_SD, y_BTD, tokens.sample_of_token(x_BTD.size(1))}, of_tokens()})
      .at(0);
}

Tensor Ops::linear_gelu_tanh(const Tensor& x, const Linear& up, Context& ctx) const {
  if (up->before || up->after || up->term) return gelu(up(x, ctx));  // something stands between the two
  ctx.count("linear", 2 * static_cast<double>(x.numel()) * static_cast<double>(up->weight.leaf().size(0)));
  OpInputs in{{x.to(ctx.compute), up->weight(ctx), up->bias(ctx)}, of_tokens()};
  if (*token_leaf_ > 0) put(up->leaves, in.attributes);
  return table_->run("linear_gelu_tanh", in).at(0);
}

Tensors Ops::run(const std::string& name, const OpInputs& inputs) const { return table_->run(name, inputs); }

}  // namespace ditto
