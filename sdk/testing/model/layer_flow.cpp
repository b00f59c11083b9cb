#include "model/layer_flow.h"

#include <numeric>
#include <set>
#include <unordered_map>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/parallel/layout.h>

#include "model/model_run.h"

namespace ditto::testing {

using torch::Tensor;
using torch::autograd::Node;

namespace {

class Recorder {
 public:
  Recorder(Units& network, Context& ctx) : layers_(cut_layers(network)), ctx_(ctx), plain_(ctx.attention_op.run) {
    for (const auto& [layer, named] : layers_) {
      layer->before = [this, layer = layer](const Tensor& x) { return entered(layer, x); };
      layer->after = [this, layer = layer](const Tensor& y) { return left(node_of(layer), y); };
    }
    ctx_.attention_op.run = [this](const AttentionCall& call) { return attended(call); };
  }
  ~Recorder() {
    for (const auto& [layer, named] : layers_) layer->before = layer->after = {};
    ctx_.attention_op.run = plain_;
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::vector<FlowNode> nodes;

 private:
  Tensor entered(CutLayer* layer, const Tensor& x) {
    auto& node = nodes[begin(layer)];
    node.input = x;
    node.from = {producers(x)};
    return x;
  }
  size_t begin(CutLayer* layer) {
    const auto& named = layers_.at(layer);
    unit_ = named.unit;
    nodes.push_back({named.name, named.unit, layer, {}, {}, {}, {}});
    return open_[layer] = nodes.size() - 1;
  }
  // That is being left; a layer need not have been entered.
  size_t node_of(CutLayer* layer) {
    const auto it = open_.find(layer);
    if (it == open_.end()) return begin(layer);
    const size_t node = it->second;
    open_.erase(it);
    return node;
  }

  // What the model goes on with is a copy: it may write to that.
  Tensor left(size_t node, const Tensor& y) {
    nodes[node].outputs.push_back(y);
    if (!y.grad_fn()) return y;
    makers_[y.grad_fn().get()] = node;
    return y.clone();
  }

  Tensors attended(const AttentionCall& call) {
    FlowNode node{"", unit_, nullptr, {}, call.parts, {}, {}};
    for (const auto& part : call.parts)
      for (const Tensor& x : {part.q, part.k, part.v}) node.from.push_back(producers(x));
    nodes.push_back(std::move(node));
    const size_t index = nodes.size() - 1;
    auto outputs = plain_(call);
    for (Tensor& y : outputs) y = left(index, y);
    return outputs;
  }

  std::vector<size_t> producers(const Tensor& x) const {
    std::set<size_t> found;
    std::set<Node*> seen;
    std::vector<Node*> open;
    if (x.grad_fn()) open.push_back(x.grad_fn().get());
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (!seen.insert(node).second) continue;
      if (const auto it = makers_.find(node); it != makers_.end()) {
        found.insert(it->second);
        continue;
      }
      for (const auto& edge : node->next_edges())
        if (edge.function) open.push_back(edge.function.get());
    }
    return {found.begin(), found.end()};
  }

  std::map<CutLayer*, NamedLayer> layers_;
  Context& ctx_;
  decltype(AttentionOp::run) plain_;
  std::map<CutLayer*, size_t> open_;
  std::unordered_map<Node*, size_t> makers_;
  Unit unit_{Unit::condition};
};

}  // namespace

const LayerCut* cut_of(const FlowNode& node) { return node.layer ? node.layer->cut(Axis::tensor) : nullptr; }

std::vector<int64_t> ranks_of(const ParameterCut& cut, int64_t degree) {
  std::vector<int64_t> ranks;
  for (const int64_t part : cut.parts)
    for (int64_t i = 0; i < part; ++i) ranks.push_back(i / (part / degree));
  return ranks;
}

int64_t most_ranks(const ParameterCut& cut) {
  int64_t common = 0;
  for (const int64_t part : cut.parts) common = std::gcd(common, part / cut.unit);
  return common;
}

std::map<CutLayer*, NamedLayer> cut_layers(Units& network) {
  std::map<CutLayer*, NamedLayer> layers;
  for (const auto& entry : Layout::of(network).entries)
    if (entry.layer) layers.try_emplace(entry.layer, NamedLayer{entry.layer_name(), entry.unit});
  return layers;
}

std::vector<FlowNode> layer_flow(Units& network, Context& ctx, const std::function<void()>& forward) {
  Recorder recorder(network, ctx);
  forward();
  return std::move(recorder.nodes);
}

std::vector<FlowNode> layer_flow(Model& model, const Batch& in, Context& ctx) {
  return layer_flow(model, ctx, [&] { predict(model, in, ctx); });
}

}  // namespace ditto::testing
