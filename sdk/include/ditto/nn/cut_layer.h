// The base of layers that may be cut: a layer states what it computes on one device and how it may be cut; strategies
// do the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/axis.h>
#include <ditto/nn/module.h>
#include <ditto/nn/split.h>

namespace ditto {

// A term of low rank beside a map, learned while the map itself is frozen (E. Hu et al., 2021, arXiv:2106.09685):
// y = W x + b + alpha / rank * B (A x).
struct LowRank {
  int64_t rank = 0;
  double alpha = 0;
};

// Base of a layer that may be cut. In its constructor it makes parameters and declares; in its forward it computes with
// what is here of them, between `enter` and `leave`:
//
//   y = leave(f(enter(x)));   and what is added once to a sum of terms: after `leave`, or before it if `adds_bias`.
class DITTO_API CutLayer : public Module {
 public:
  CutLayer();
  ~CutLayer() override;
  // What it declares about the axis; null: along it all of its parameters are copies.
  const LayerCut* cut(Axis axis) const;
  // False: what it makes of one place depends on others (a map's neighbours, a norm over all of them). Strategies that
  // cut a sample by places refuse a block with such a layer, and name it.
  virtual bool token_local() const { return true; }
  CutLayer* cut_layer() override { return this; }

  // Gives it a term of low rank, cut as it is itself: "lora_A.weight" [rank, in], which is drawn, and "lora_B.weight"
  // [out, rank], zeros. False: it has no place for one.
  virtual bool adapt(const LowRank& term);
  // Of a layer that is here whole: makes the term a part of the weight, if there is one, and takes it away.
  virtual void merge() {}

  // Set by strategies. `before` maps the input, `after` the output.
  using Exchange = std::function<torch::Tensor(const torch::Tensor&)>;
  Exchange before, after;
  // Of ranks whose terms are summed, one adds what is to be added once.
  bool adds_bias = true;

  // Set by strategies that cut along tensor: of every part of what they cut.
  ShareHere share;

  // Under run.numerics = "one" sums that a cut goes through are made of leaves. How many such leaves there are, of
  // which every rank gets as many; 0: a cut goes through no sum; none: it cannot compute by nodes, and is not cut.
  virtual std::optional<int64_t> leaves_to_cut() const { return std::nullopt; }
  // Set by strategies then, in the place of `before`, and of an `after` that sums: the layer computes with one node of
  // the leaves that are here at a time. One that has whole inputs and makes terms has `before` and `after` besides,
  // where ranks share the tokens between layers: they make tokens whole, and take the own ones.
  struct Nodes {
    std::vector<int64_t> leaves;                                                // of each node
    std::function<std::vector<torch::Tensor>(const torch::Tensor& x)> copies;   // of whole inputs: for each node
    std::function<torch::Tensor(const std::vector<torch::Tensor>& terms)> sum;  // of terms: one of each node
    // Of what has no tokens, one for each node of outputs.
    std::function<std::vector<torch::Tensor>(const torch::Tensor& rows)> copies_of_rows;
    // Of terms without tokens, one of each node: their sum, on every rank.
    std::function<torch::Tensor(const std::vector<torch::Tensor>& terms)> sum_of_rows;
  };
  std::shared_ptr<const Nodes> nodes;
  // Takes rows sorted by unit, counts[i] of them for unit i, to where the units are, has `run` compute them there, and
  // brings the results back; by default all units are here.
  using Rows = std::function<torch::Tensor(const torch::Tensor& x_RD, const std::vector<int64_t>& counts)>;
  std::function<torch::Tensor(const torch::Tensor& x_RD, const std::vector<int64_t>& counts, const Rows& run)> dispatch;
  // Set with it. Takes one whole number for each of such rows to where the units are, in the order in which `run` gets
  // the rows; the i-th rank adds i * stride to its own.
  std::function<torch::Tensor(const torch::Tensor& number_R, const std::vector<int64_t>& counts, int64_t stride)>
      dispatch_numbers;

 protected:
  // `layer`: what messages call it. Throws Error(plugin) for what the parameters' shapes do not allow.
  void declare(Axis axis, LayerCut cut, const std::string& layer);
  // What a Split says of a "weight" [out, in, …] and, where there is one, a "bias" [out], about the tensor axis.
  struct Words {
    std::string layer, inputs, outputs;  // for messages: "linear layer", "inputs", "outputs"
    int64_t channels = -1;
    int64_t dim_of_inputs = 1;  // 0: the weight is [in, out, …]
  };
  void declare(const Split& split, const Words& words);
  torch::Tensor enter(const torch::Tensor& x) const { return before ? before(x) : x; }
  torch::Tensor leave(const torch::Tensor& y) const { return after ? after(y) : y; }

 private:
  std::map<Axis, LayerCut> cuts_;
};

}  // namespace ditto
