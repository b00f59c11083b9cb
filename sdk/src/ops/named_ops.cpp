// The table's ops as layers and models call them. What only run.numerics = "one" asks for, leaves of tokens and of a
// layer's sums, is said under it alone: fast kernels need not know it.
#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/nn/linear.h>
#include <ditto/parallel/replicated.h>

namespace ditto {

using torch::Tensor;

std::map<std::string, Attribute> Ops::of_tokens(std::map<std::string, Attribute> attributes) const {
  if (leaves_->tokens > 0) attributes["token_leaf"] = leaves_->tokens;
  return attributes;
}

SlicesHere& LeavesHere::of(const std::string& sequence) {
  if (sequence == Split::kSideBySide && (inside || between))
    throw Error(
        ErrorKind::config, "run.numerics",
        "\"one\" does not go with a cut of tokens for a layer that maps those of several sequences side by side",
        "cut along other axes than context, or set run.numerics = \"fast\"");
  return sequence.empty() || sequence == Split::kSideBySide ? *this : others[sequence];
}

const SlicesHere& LeavesHere::of_tokens(int64_t count) const {
  if (between && between->tokens != count)
    for (const auto& [name, other] : others)
      if (other.between && other.between->tokens == count) return other;
  return *this;
}

Tensor Ops::by_nodes(const char* op, const OpInputs& inputs, std::vector<size_t> in_tokens,
                     const SlicesHere& slices) const {
  const auto here = place_ == Place::between ? slices.between : place_ == Place::inside ? slices.inside : nullptr;
  const auto learns = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  if (!here || !torch::GradMode::is_enabled() || std::none_of(inputs.tensors.begin(), inputs.tensors.end(), learns))
    return table_->run(op, inputs).at(0);
  const auto lengths = here->node_lengths();
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const Tensor& x = inputs.tensors.at(0);
  if (x.dim() < 3 || x.size(1) != tokens)
    throw Error(ErrorKind::plugin, std::string("op \"") + op + "\"",
                "is given a tensor of " + c10::str(x.sizes()) + " where this rank has " + std::to_string(tokens) +
                    " of a sample's " + std::to_string(here->tokens) + " tokens",
                "of what is not the stream's tokens, compute with ctx.ops.of_condition(), or a layer whose Split is "
                "of_condition(); of a second sequence's, with ctx.ops.of(NAME)");
  const replicated::Share share(here, &here->share);
  std::vector<OpInputs> nodes(lengths.size(), {Tensors(inputs.tensors.size()), inputs.attributes});
  for (size_t i = 0; i < inputs.tensors.size(); ++i) {
    const Tensor& tensor = inputs.tensors[i];
    if (!tensor.defined()) continue;
    const bool along = std::find(in_tokens.begin(), in_tokens.end(), i) != in_tokens.end();
    const auto pieces = along ? tensor.split_with_sizes(lengths, 1) : replicated::copies(tensor, share);
    for (size_t node = 0; node < nodes.size(); ++node) nodes[node].tensors[i] = pieces[node];
  }
  Tensors results;
  for (const auto& node : nodes) results.push_back(table_->run(op, node).at(0));
  return results.size() == 1 ? results[0] : torch::cat(results, 1);
}

namespace {

void put(const SumLeaves& leaves, const LeavesHere& here, std::map<std::string, Attribute>& attributes) {
  if (here.tokens == 0) return;
  if (!leaves.in.empty()) attributes["in_leaves"] = leaves.in;
  if (!leaves.out.empty()) attributes["out_leaves"] = leaves.out;
  if (here.bf16) attributes["bf16"] = true;
}

}  // namespace

Tensor Ops::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const SumLeaves& leaves) const {
  OpInputs in{{x, weight, bias}, of_tokens()};
  put(leaves, *leaves_, in.attributes);
  return by_nodes("linear", in, {0});
}

Tensor Ops::silu(const Tensor& x) const { return table_->run("silu", {{x}}).at(0); }

Tensor Ops::gelu(const Tensor& x, bool tanh) const { return table_->run("gelu", {{x}, {{"tanh", tanh}}}).at(0); }

Tensor Ops::rms_norm(const Tensor& x, const Tensor& weight, double eps) const {
  return by_nodes("rms_norm", {{x, weight}, of_tokens({{"eps", eps}})}, {0});
}

Tensor Ops::spread(const Tensor& rows, int64_t samples, int64_t n, int64_t leaf) const {
  const auto zeros = torch::zeros({samples, n, rows.size(-1)}, rows.options().requires_grad(false));
  if (rows.dim() == 1) return table_->run("add_row", {{zeros, rows}, {{"token_leaf", leaf}}}).at(0);
  return table_->run("gated_residual", {{zeros, rows, torch::ones_like(zeros), {}}, {{"token_leaf", leaf}}}).at(0);
}

Tensor Ops::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) const {
  return by_nodes("layer_norm", {{x, weight, bias}, of_tokens({{"eps", eps}})}, {0});
}

Tensor Ops::embedding_rows(const Tensor& table, const Tensor& index_B) const {
  return table_->run("embedding_rows", {{table, index_B}}).at(0);
}

Tensor Ops::add_row(const Tensor& x, const Tensor& row) const {
  return by_nodes("add_row", {{x, row}, of_tokens()}, {0});
}

Tensor Ops::sample_mean(const Tensor& x) const { return table_->run("sample_mean", {{x}}).at(0); }

Tensor Ops::softmax(const Tensor& x) const { return table_->run("softmax", {{x}}).at(0); }

Tensor Ops::row_total(const Tensor& x) const { return table_->run("row_total", {{x}}).at(0); }

Tensor Ops::expert_balance(const Tensor& x_BTE) const {
  return table_->run("expert_balance", {{x_BTE}, of_tokens()}).at(0);
}

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
  return by_nodes("norm_modulate",
                  {{x_BTD, shift_SD, scale_SD, tokens.sample_of_token(x_BTD.size(1))}, of_tokens({{"eps", eps}})}, {0},
                  leaves_->of_tokens(tokens.tokens()));
}

Tensor Ops::gated_residual(const Tensor& x_BTD, const Tensor& gate_SD, const Tensor& y_BTD,
                           const Sequence& tokens) const {
  if (gate_SD.dim() == 3)
    return gated_residual(as_row(x_BTD), gate_SD.flatten(0, 1), as_row(y_BTD), frames_of(x_BTD, tokens))
        .reshape(x_BTD.sizes());
  return by_nodes("gated_residual", {{x_BTD, gate_SD, y_BTD, tokens.sample_of_token(x_BTD.size(1))}, of_tokens()},
                  {0, 2}, leaves_->of_tokens(tokens.tokens()));
}

Tensor Ops::linear_gelu_tanh(const Tensor& x, const Linear& up, Context& ctx) const {
  // Something stands between the two, or there is no bias, which the op takes.
  if (up->before || up->after || up->nodes || up->term || !up->bias.defined()) return gelu(up(x, ctx));
  ctx.count("linear", 2 * static_cast<double>(x.numel()) * static_cast<double>(up->weight.leaf().size(0)));
  OpInputs in{{x.to(ctx.compute), up->weight(ctx), up->bias(ctx)}, of_tokens()};
  put(up->leaves, *leaves_, in.attributes);
  return of(up->split.sequence).by_nodes("linear_gelu_tanh", in, {0});
}

Tensor Ops::mlp_gelu_tanh(const Tensor& x, const Linear& up, const Linear& down, Context& ctx) const {
  const auto plain = [](const Linear& map) { return !map->before && !map->after && !map->nodes && !map->term; };
  const auto device = x.is_meta() ? table_->meta_stands_for : x.device().type();
  // On a processor nothing is gained by it, and runs keep the bits of the two.
  const char* apart = device == torch::kCPU        ? "on a processor"
                      : leaves_->tokens != 0       ? "in leaves of tokens"
                      : !up->bias.defined()        ? "of a map without a bias"
                      : !plain(up) || !plain(down) ? "of maps that ranks share, or an adapter adds to"
                                                   : nullptr;
  if (apart) {
    table_->refuse_pin("mlp_gelu_tanh", apart);
  } else {
    const OpInputs in{{x.to(ctx.compute), up->weight(ctx), up->bias(ctx), down->weight(ctx),
                       down->bias.defined() ? down->bias(ctx) : Tensor()}};
    if (table_->serves("mlp_gelu_tanh", in)) {
      const auto rows = static_cast<double>(x.numel() / x.size(-1)),
                 hidden = static_cast<double>(in.tensors[1].size(0));
      ctx.count("linear", 2 * rows * hidden * static_cast<double>(x.size(-1) + in.tensors[3].size(0)));
      return table_->run("mlp_gelu_tanh", in).at(0);
    }
  }
  return down(linear_gelu_tanh(x, up, ctx), ctx);
}

Tensor Ops::conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const std::vector<int64_t>& stride,
                 const std::vector<int64_t>& before, const std::vector<int64_t>& after, const SumLeaves& leaves) const {
  OpInputs in{{x, weight, bias}, of_tokens({{"stride", stride}, {"before", before}, {"after", after}})};
  put(leaves, *leaves_, in.attributes);
  return table_->run("conv", in).at(0);
}

Tensor Ops::conv_transposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                            const SumLeaves& leaves) const {
  OpInputs in{{x, weight, bias}, of_tokens({{"stride", stride}, {"padding", padding}})};
  put(leaves, *leaves_, in.attributes);
  return table_->run("conv_transposed", in).at(0);
}

Tensor Ops::resample(const Tensor& x, Resample kind, const std::vector<int64_t>& sides) const {
  return table_->run("resample", {{x}, {{"kind", static_cast<int64_t>(kind)}, {"sides", sides}}}).at(0);
}

Tensor Ops::add_channels(const Tensor& x, const Tensor& rows_BC) const {
  return table_->run("add_channels", {{x, rows_BC}, of_tokens()}).at(0);
}

Tensor Ops::group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias, double eps,
                       const AfterNorm& then) const {
  return table_
      ->run("group_norm", {{x, weight, bias, then.shift, then.scale},
                           of_tokens({{"groups", groups}, {"eps", eps}, {"silu", then.silu}})})
      .at(0);
}

Tensors Ops::run(const std::string& name, const OpInputs& inputs) const { return table_->run(name, inputs); }

}  // namespace ditto
