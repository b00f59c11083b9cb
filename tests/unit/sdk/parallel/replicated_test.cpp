// Claim (layouts): Nodes of a tree over leaves that ranks share: which they are, and that sums of them are one
// rank's sums, to the bit.
#include <ditto/parallel/replicated.h>
#include <ditto/parallel/tree_sum.h>

#include <doctest/doctest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>

#include "core/mesh/equal_copies.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using testing::numbers;
using testing::same_bits;
using torch::Tensor;

// Of leaves [begin, end), as one rank makes it.
Tensor tree(const Tensor& leaves, int64_t begin, int64_t end) {
  TreeSum sum;
  for (int64_t i = begin; i < end; ++i) sum.add(leaves[i].clone());
  return sum.take();
}

std::string text(const std::vector<LeafRun>& nodes) {
  std::string text;
  for (const auto& node : nodes) text += std::to_string(node.begin) + "-" + std::to_string(node.end) + " ";
  return text;
}

TEST_CASE("a run's nodes are the largest that are whole") {
  CHECK(text(whole_nodes({0, 8}, 8)) == "0-8 ");
  CHECK(text(whole_nodes({0, 4}, 8)) == "0-4 ");
  CHECK(text(whole_nodes({3, 8}, 8)) == "3-4 4-8 ");
  CHECK(text(whole_nodes({1, 7}, 8)) == "1-2 2-4 4-6 6-7 ");
  CHECK(text(whole_nodes({0, 6}, 12)) == "0-4 4-6 ");
  CHECK(text(whole_nodes({6, 12}, 12)) == "6-8 8-12 ");  // node (2, 2) has no sibling
  CHECK(text(whole_nodes({4, 8}, 12)) == "4-8 ");
  CHECK(text(whole_nodes({4, 5}, 5)) == "4-5 ");
  CHECK(text(whole_nodes({0, 5}, 5)) == "0-5 ");
  CHECK(text(whole_nodes({2, 2}, 5)).empty());
}

TEST_CASE("nodes of any runs add up to the tree over all leaves") {
  for (int64_t leaves = 1; leaves <= 13; ++leaves) {
    const auto terms = numbers({leaves, 31}, leaves);
    for (int64_t first = 0; first <= leaves; ++first)
      for (int64_t second = first; second <= leaves; ++second) {
        std::vector<LeafRun> nodes;
        Tensors values;
        for (const LeafRun& run : {LeafRun{0, first}, {first, second}, {second, leaves}})
          for (const auto& node : whole_nodes(run, leaves)) {
            nodes.push_back(node);
            values.push_back(tree(terms, node.begin, node.end));
          }
        CAPTURE(text(nodes));
        CHECK(same_bits(sum_of_nodes(nodes, values, leaves), tree(terms, 0, leaves)));
      }
  }
}

TEST_CASE("fewer leaves than ranks are refused") {
  const Group group(0, 3, "tensor", nullptr);
  CHECK_THROWS_WITH_AS(LeafShare::equal(group, 2, "parallel.tensor", "the heads"),
                       doctest::Contains("parallel.tensor: 3 is more than the 2 leaves"), Error);
  CHECK(text(LeafShare::equal(group, 7, "", "").runs()) == "0-2 2-4 4-7 ");
}

TEST_CASE("tokens of the last leaf are what is left") {
  const Group group(1, 2, "context", nullptr);
  const TokenLeaves tokens{LeafShare::equal(group, 5, "", ""), 8, 35};
  CHECK(tokens.lengths() == std::vector<int64_t>{16, 19});
  CHECK(tokens.node_lengths() == std::vector<int64_t>{16, 3});
  CHECK(tokens.begin(1) == 16);
}

constexpr int64_t kLeaves = 11, kLength = 9;

struct Rank {
  replicated::Share share;
  Tensors nodes(const Tensor& terms) const {
    Tensors values;
    for (const auto& node : share->nodes()) values.push_back(tree(terms, node.begin, node.end).requires_grad_());
    return values;
  }
};

TEST_CASE("ranks sum nodes as one rank sums leaves" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 3}});
  const Group& group = mesh.group(Axis::tensor);
  // Members' runs need not lie in the order of members.
  for (const auto& runs : {std::vector<LeafRun>{{0, 4}, {4, 8}, {8, 11}}, {{5, 11}, {0, 1}, {1, 5}}}) {
    const Rank rank{std::make_shared<const LeafShare>(group, runs)};
    const auto terms = numbers({kLeaves, kLength, 4}, 1), others = numbers({kLength, 4}, 2);
    const auto expected = tree(terms, 0, kLeaves);
    const std::vector<int64_t> lengths{2, 0, 7};
    const int64_t here = lengths[static_cast<size_t>(group.rank())], start = group.rank() == 2 ? 2 : group.rank() * 2;

    auto nodes = rank.nodes(terms);
    const auto sum = replicated::sum(nodes, rank.share);
    CHECK(same_bits(sum, expected));
    (sum * others).sum().backward();
    for (const auto& node : nodes) CHECK(same_bits(node.grad(), others));

    nodes = rank.nodes(terms);
    const auto part = replicated::sum(nodes, rank.share, 0, lengths);
    CHECK(same_bits(part, expected.narrow(0, start, here)));
    (part * others.narrow(0, start, here)).sum().backward();
    for (const auto& node : nodes) CHECK(same_bits(node.grad(), others));

    // A copy for each node, whose gradient is the node's: all ranks get the tree over all leaves.
    const auto whole = numbers({kLength, 4}, 3).requires_grad_();
    const auto learn = [&](const Tensors& copies) {
      CHECK(copies.size() == rank.share->nodes().size());
      Tensor loss = torch::zeros({});
      for (size_t i = 0; i < copies.size(); ++i) {
        CHECK(same_bits(copies[i], whole));
        const auto node = rank.share->nodes()[i];
        loss = loss + (copies[i] * tree(terms, node.begin, node.end)).sum();
      }
      loss.backward();
    };
    learn(replicated::copies(whole, rank.share));
    CHECK(same_bits(whole.grad(), expected));
    const auto own = whole.detach().narrow(0, start, here).clone().requires_grad_();
    learn(replicated::copies(own, rank.share, 0, lengths));
    CHECK(same_bits(own.grad(), expected.narrow(0, start, here)));

    // What is whole has a whole gradient.
    const auto piece = own.detach().clone().requires_grad_();
    const auto gathered = replicated::gather(piece, group, 0, lengths);
    CHECK(same_bits(gathered, whole));
    (gathered * others).sum().backward();
    CHECK(same_bits(piece.grad(), others.narrow(0, start, here)));
    const auto full = whole.detach().clone().requires_grad_();
    (replicated::part(full, group, 0, lengths) * others.narrow(0, start, here)).sum().backward();
    CHECK(same_bits(full.grad(), others));
  }
}

TEST_CASE("sums of nodes over three ranks") {
  CHECK(testing::as_ranks(3, "ranks sum nodes as one rank sums leaves") == 0);
}

TEST_CASE("rank of: gradients of copies" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::context, 2}});
  Layout layout;
  layout.entries.resize(2);
  for (auto& entry : layout.entries) {
    entry.name = layout.entries[0].name.empty() ? "one" : "other";
    entry.tensor = torch::ones({3}).requires_grad_();
    entry.tensor.mutable_grad() = torch::ones({3});
  }
  check_equal_copies(layout, mesh);
  layout.entries[1].tensor.mutable_grad()[2] += mesh.rank() * 1e-6;
  CHECK_THROWS_WITH_AS(check_equal_copies(layout, mesh),
                       doctest::Contains("parameter \"other\": has another gradient on each rank of the context axis"),
                       Error);
}

TEST_CASE("a copy whose gradient differs between ranks that share a sample is refused by its name") {
  CHECK(testing::as_ranks(2, "rank of: gradients of copies") == 0);
}

}  // namespace
}  // namespace ditto
