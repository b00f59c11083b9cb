// A model that knows how many heads or hidden numbers there are is found out by leaving it half of them.
#include <algorithm>
#include <exception>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>
#include <torch/types.h>

#include "model/model_run.h"
#include "model/splits.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;
using Values = LayerCut::Values;

namespace {

// The first of two ranks: what layers leave is cut to its share, and what they take is filled up again.
class Half {
 public:
  Half(Model& model, Context& ctx, const std::vector<FlowNode>& flow)
      : layers_(cut_layers(model)), ctx_(ctx), plain_(ctx.attention_op.run) {
    for (const auto& node : flow)
      if (node.is_attention()) whole_.push_back(&node);
    for (const auto& [layer, named] : layers_) {
      const auto* cut = layer->cut(Axis::tensor);
      if (!cut) continue;
      const auto mine = torch::tensor(ranks_of(cut->parameters[0], 2)).eq(0).nonzero().squeeze(1);
      const auto total = std::accumulate(cut->parameters[0].parts.begin(), cut->parameters[0].parts.end(), int64_t{0});
      if (cut->input == Values::cut)
        layer->before = [=, name = named.name, dim = cut->channels](const Tensor& x) {
          auto shape = x.sizes().vec();
          const auto at = static_cast<size_t>(dim < 0 ? dim + x.dim() : dim);
          if (shape[at] != mine.size(0))
            throw std::runtime_error(name + " is given " + std::to_string(shape[at]) + " numbers, of which " +
                                     std::to_string(mine.size(0)) + " are this rank's");
          shape[at] = total;
          return torch::zeros(shape, x.options()).index_copy(dim, mine, x);
        };
      if (cut->output == Values::cut && !cut->gathered)
        layer->after = [=, this, name = named.name, dim = cut->channels](const Tensor& y) {
          last_ = name;
          last_are_heads_ = cut->are_heads;
          last_share_ =
              fmt::format("{} of {}", mine.size(0) / cut->parameters[0].unit, total / cut->parameters[0].unit);
          return y.index_select(dim, mine);
        };
    }
    ctx_.attention_op.run = [this](const AttentionCall& call) { return attended(call); };
  }
  ~Half() {
    for (const auto& [layer, named] : layers_) layer->before = layer->after = {};
    ctx_.attention_op.run = plain_;
  }
  Half(const Half&) = delete;
  Half& operator=(const Half&) = delete;

  static bool can_be(const std::vector<FlowNode>& flow) {
    return std::all_of(flow.begin(), flow.end(), [](const FlowNode& node) {
      const auto* cut = cut_of(node);
      return !cut || most_ranks(cut->parameters[0]) % 2 == 0;
    });
  }

  std::string problem(const std::string& what) const {
    if (last_.empty()) return {};
    const char* remedy = last_are_heads_ ? "write unflatten(-1, {…, -1, head_width}), and never the number of heads"
                                         : "take sizes from the tensors that are here, or write -1";
    return fmt::format("where {} leaves a rank {} {}, {}: {}", last_, last_share_,
                       last_are_heads_ ? "heads" : "outputs", what, remedy);
  }
  bool are_heads() const { return last_are_heads_; }

 private:
  Tensors attended(const AttentionCall& call) {
    const FlowNode& whole = *whole_.at(calls_++);
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const auto &q = call.parts[i].q, &q_whole = whole.parts.at(i).q;
      if (q.size(3) != q_whole.size(3))
        throw std::runtime_error(
            fmt::format("attention is given {} heads of width {}, where the whole has {} of width {}", q.size(2),
                        q.size(3), q_whole.size(2), q_whole.size(3)));
    }
    return plain_(call);
  }

  std::map<CutLayer*, NamedLayer> layers_;
  Context& ctx_;
  decltype(AttentionOp::run) plain_;
  std::vector<const FlowNode*> whole_;
  size_t calls_ = 0;
  std::string last_, last_share_;  // the layer that was left last, and what of it
  bool last_are_heads_ = false;
};

}  // namespace

std::string written_number(Model& model, const Batch& in, Context& ctx, const std::vector<FlowNode>& flow) {
  if (!Half::can_be(flow)) return {};
  torch::NoGradGuard no_grad;
  Half half(model, ctx, flow);
  try {
    predict(model, in, ctx);
  } catch (const std::exception& error) {
    const auto found = half.problem(first_line(error));
    if (found.empty()) return {};
    return (half.are_heads() ? "a hard-coded number of heads: " : "a hard-coded width: ") + found;
  }
  return {};
}

}  // namespace ditto::testing
