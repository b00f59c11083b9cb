// Which layer's outputs become which layer's inputs, found on one rank along the graph that backward goes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ditto/model.h>

namespace ditto::testing {

// A call of a layer that may be cut, or of attention.
struct FlowNode {
  std::string name;                  // "blocks.0.qkv"; empty: attention
  Unit unit;                         // that it is called in
  CutLayer* layer = nullptr;         // null: attention
  torch::Tensor input;               // of a layer
  std::vector<AttentionPart> parts;  // of attention
  std::vector<torch::Tensor> outputs;
  // The calls whose outputs reach it through nothing but what lies between layers: of a layer one list, of attention
  // one each for q, k and v of every part.
  std::vector<std::vector<size_t>> from;
  bool is_attention() const { return layer == nullptr; }
};

// Of one forward, in the order of calls; the graph is kept. The network's layers have no exchanges yet.
std::vector<FlowNode> layer_flow(Units& network, Context& ctx, const std::function<void()>& forward);
std::vector<FlowNode> layer_flow(Model& model, const Batch& in, Context& ctx);

// The layers that may be cut, each with its name and unit.
struct NamedLayer {
  std::string name;
  Unit unit;
};
std::map<CutLayer*, NamedLayer> cut_layers(Units& network);

// What a call's layer declares about the tensor axis; null: nothing, or attention.
const LayerCut* cut_of(const FlowNode& node);
// The rank that each number along a cut dim is left to.
std::vector<int64_t> ranks_of(const ParameterCut& cut, int64_t degree);
// The most ranks that a cut allows.
int64_t most_ranks(const ParameterCut& cut);

}  // namespace ditto::testing
