// Layers that compute by nodes of their sums' leaves (CutLayer::Nodes).
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <ditto/nn/split.h>

namespace ditto {

// Of a layer's sum that a cut goes through: over inputs where its outputs are terms, else over outputs.
inline int64_t leaves_that_are_cut(const SumLeaves& leaves, bool outputs_are_terms) {
  const auto& summed = outputs_are_terms ? leaves.in : leaves.out;
  return summed.empty() ? 1 : summed[0];
}

// A dim of which nodes of leaves are here: of each part of the dim, node by node, one run after another.
class NodesOfDim {
 public:
  NodesOfDim(const std::vector<int64_t>& leaves, const std::vector<int64_t>& counts) : counts_(counts) {
    for (size_t part = 1; part < leaves.size(); ++part) runs_.push_back(leaves[part] / leaves[0]);
  }

  // {U, w0, w1, …} of one node.
  std::vector<int64_t> leaves(size_t node) const {
    std::vector<int64_t> list{counts_[node]};
    for (const int64_t run : runs_) list.push_back(counts_[node] * run);
    return list;
  }

  // The pieces of x's dim that belong to each node.
  std::vector<torch::Tensor> split(const torch::Tensor& x, int64_t dim) const {
    if (counts_.size() == 1) return {x};
    std::vector<int64_t> lengths;
    for (const int64_t run : runs_)
      for (const int64_t count : counts_) lengths.push_back(count * run);
    const auto pieces = x.split_with_sizes(lengths, dim);
    std::vector<torch::Tensor> nodes;
    for (size_t node = 0; node < counts_.size(); ++node) {
      std::vector<torch::Tensor> of_parts;
      for (size_t part = 0; part < runs_.size(); ++part) of_parts.push_back(pieces[part * counts_.size() + node]);
      nodes.push_back(of_parts.size() == 1 ? of_parts[0] : torch::cat(of_parts, dim));
    }
    return nodes;
  }

  // And back.
  torch::Tensor join(const std::vector<torch::Tensor>& nodes, int64_t dim) const {
    if (nodes.size() == 1) return nodes[0];
    std::vector<std::vector<torch::Tensor>> pieces;
    for (size_t node = 0; node < nodes.size(); ++node) {
      const auto widths = leaves(node);
      pieces.push_back(nodes[node].split_with_sizes(at::IntArrayRef(widths).slice(1), dim));
    }
    std::vector<torch::Tensor> ordered;
    for (size_t part = 0; part < runs_.size(); ++part)
      for (const auto& of_node : pieces) ordered.push_back(of_node[part]);
    return torch::cat(ordered, dim);
  }

 private:
  const std::vector<int64_t>& counts_;
  std::vector<int64_t> runs_;  // numbers of a leaf in each part
};

}  // namespace ditto
