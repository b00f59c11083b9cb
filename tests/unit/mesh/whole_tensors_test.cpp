// Whole tensors for optimizers that need them, on real ranks; and the optimizers on what ranks hold.
#include <doctest/doctest.h>

#include "core/components/optimizers.h"
#include "core/mesh/whole.h"
#include "support/open_plugin.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using torch::Tensor;

struct Given {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::pair<Axis, Cut>> cuts;  // in kCutOrder; without parts: of what is left
};

// Uneven and empty pieces, parts, two cuts of one dim, two families, and one that is not cut.
const std::vector<Given> kParameters{
    {"qkv.weight", {24, 10}, {{Axis::tensor, {0, {8, 8, 8}}}, {Axis::shard, {0}}}},
    {"down.weight", {7, 16}, {{Axis::tensor, {1}}, {Axis::shard, {0}}}},
    {"few.weight", {1, 9}, {{Axis::shard, {0}}}},
    {"odd.weight", {11, 5}, {{Axis::shard, {0}}}},
    {"experts", {4, 6, 5}, {{Axis::tensor, {1}}, {Axis::shard, {0}}}},
    {"plain.weight", {5, 6}, {}},
    {"qkv.bias", {24}, {{Axis::tensor, {0, {8, 8, 8}}}, {Axis::shard, {0}}}},
    {"large.weight", {65, 130}, {{Axis::tensor, {0}}, {Axis::shard, {0}}}},
};

Tensor local(const LayoutEntry& entry, Tensor whole) {
  for (const Axis axis : kCutOrder)
    if (entry.cuts.count(axis)) whole = cut(whole, entry.cuts.at(axis));
  return whole;
}

Layout layout_on(const Mesh& mesh) {
  Layout layout;
  for (const auto& [name, shape, cuts] : kParameters) {
    LayoutEntry entry;
    entry.name = name;
    entry.full_shape = shape;
    for (auto [axis, piece] : cuts) {
      if (mesh.size(axis) == 1) continue;
      if (piece.parts.empty()) piece.parts = {local_shape(entry)[static_cast<size_t>(piece.dim)]};
      piece.index = mesh.index(axis);
      piece.count = mesh.size(axis);
      entry.cuts[axis] = piece;
    }
    const auto seed = static_cast<int64_t>(layout.entries.size());
    entry.tensor = local(entry, testing::numbers(shape, seed)).requires_grad_();
    layout.entries.push_back(std::move(entry));
  }
  return layout;
}

struct OneRank final : WholeTensors {
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override { return local; }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    return whole;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    return std::vector<bool>(local.size(), true);
  }
};

testing::RankMesh grid() { return testing::mesh_of({{Axis::tensor, 2}, {Axis::shard, rank_info().world_size / 2}}); }

// Of groups whose states are in slices, in blocks and whole, one of which has parameters that no other is like.
std::shared_ptr<Optimizer> make_groups(const Optimizer::Needs& needs) {
  auto recipe = Recipe::parse(R"(
[optimizer]
plugin = "muon"
weight_decay = 0.1
[[optimizer.group]]
match = ["large.*", "qkv.bias"]
plugin = "adamw8bit"
[[optimizer.group]]
match = ["down.*", "experts", "plain.*"]
plugin = "adafactor"
lr_scale = 2.0
)",
                              "groups.toml");
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  Components components(recipe, registry);
  return make_optimizer(components, needs);
}

std::shared_ptr<Optimizer> make_named(const std::string& plugin, const Optimizer::Needs& needs) {
  if (plugin == "groups") return make_groups(needs);
  return test::make_plugin<Optimizer>("optimizers", plugin, {{"weight_decay", 0.1}}, needs);
}

// The weights after some steps, of whatever part of them is here.
std::vector<Tensor> train(const std::string& plugin, Layout& layout, const WholeTensors& whole) {
  std::vector<OptimizedParameter> parameters;
  for (const auto& entry : layout.entries) parameters.push_back({entry.name, entry.tensor, entry.full_shape});
  const auto optimizer = make_named(plugin, {parameters, &whole});
  std::vector<Tensor> average;
  if (optimizer->averages())
    for (const auto& entry : layout.entries) average.push_back(entry.tensor.detach().clone());
  for (int64_t step = 0; step < 5; ++step) {
    for (size_t i = 0; i < layout.entries.size(); ++i) {
      auto& entry = layout.entries[i];
      const auto seed = 1000 * (step + 1) + static_cast<int64_t>(i);
      entry.tensor.mutable_grad() = local(entry, testing::numbers(entry.full_shape, seed));
    }
    optimizer->step({.lr = 0.01, .average = average});
  }
  std::vector<Tensor> weights;
  for (const auto& entry : layout.entries) weights.push_back(entry.tensor.detach());
  return weights;
}

}  // namespace

TEST_CASE("rank of: wholes" * doctest::skip()) {
  const auto mesh = grid();
  const auto layout = layout_on(mesh);
  const auto wholes = make_whole_tensors(layout, mesh);
  for (int64_t round = 0; round < 2; ++round) {
    std::vector<Tensor> here;
    for (size_t i = 0; i < layout.entries.size(); ++i)
      here.push_back(i == 3 && round == 1 ? Tensor() : layout.entries[i].tensor.detach() + round);
    mesh.traffic().clear();
    const auto brought = wholes->here(here);
    const auto gathered = wholes->gather(here);
    for (size_t i = 0; i < here.size(); ++i) CHECK(brought[i] == gathered[i].defined());
    for (size_t i = 0; i < here.size(); ++i) {
      CAPTURE(layout.entries[i].name);
      const auto expected = testing::numbers(layout.entries[i].full_shape, static_cast<int64_t>(i)) + round;
      if (gathered[i].defined()) CHECK(testing::same_bits(gathered[i], expected));
      const auto owners = mesh.world().all_reduce(torch::tensor({gathered[i].defined() ? 1 : 0}, torch::kLong));
      int64_t copies = mesh.world_size();  // of one set of ranks that hold all of it
      for (const auto& [axis, cut] : layout.entries[i].cuts) copies /= cut.count;
      CHECK(owners.item<int64_t>() == (here[i].defined() ? copies : 0));
    }
    auto back = wholes->scatter(gathered, here);
    for (size_t i = 0; i < here.size(); ++i) {
      CHECK(back[i].defined() == here[i].defined());
      if (here[i].defined()) CHECK(testing::same_bits(back[i], here[i]));
    }
  }
}

TEST_CASE("rank of: exchanges of wholes" * doctest::skip()) {
  const auto mesh = grid();
  const auto layout = layout_on(mesh);
  const auto wholes = make_whole_tensors(layout, mesh);
  std::vector<Tensor> here;
  for (const auto& entry : layout.entries) here.push_back(entry.tensor.detach());
  wholes->gather(here);  // the first one also makes the ranks known to each other
  mesh.traffic().clear();
  const auto gathered = wholes->gather(here);
  int64_t calls = 0, bytes = 0, held = 0;
  for (const auto& [key, count] : mesh.traffic().counts()) {
    CHECK(key.op == "exchange");
    calls += count.calls;
    bytes += count.bytes;
  }
  for (const auto& entry : layout.entries)
    if (!entry.cuts.empty()) held += entry.tensor.numel() * 4;
  CHECK(calls == 2);  // one for each set of axes
  CHECK(bytes <= held);
}

TEST_CASE("rank of: optimizers on slices" * doctest::skip()) {
  const auto mesh = grid();
  const OneRank one;
  for (const std::string plugin :
       {"muon", "adamw", "adamw8bit", "sgd", "lion", "adafactor", "schedule_free", "groups"}) {
    CAPTURE(plugin);
    auto layout = layout_on(mesh);
    const auto wholes = make_whole_tensors(layout, mesh);
    const auto found = train(plugin, layout, *wholes);
    auto whole_layout = Layout{};
    for (size_t i = 0; i < kParameters.size(); ++i) {
      LayoutEntry entry;
      entry.name = kParameters[i].name;
      entry.full_shape = kParameters[i].shape;
      entry.tensor = testing::numbers(entry.full_shape, static_cast<int64_t>(i)).requires_grad_();
      whole_layout.entries.push_back(std::move(entry));
    }
    const auto expected = train(plugin, whole_layout, one);
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(kParameters[i].name);
      CHECK(testing::same_bits(found[i], local(layout.entries[i], expected[i])));
    }
  }
}

TEST_CASE("each tensor comes back whole on one of the ranks that hold it, and goes back to where it was") {
  CHECK(testing::as_ranks(2, "rank of: wholes") == 0);
  CHECK(testing::as_ranks(6, "rank of: wholes") == 0);
}

TEST_CASE("wholes are gathered by one exchange for each set of axes, of no more than a rank holds") {
  CHECK(testing::as_ranks(4, "rank of: exchanges of wholes") == 0);
}

TEST_CASE(
    "given the same gradients, every optimizer, and groups of several, move slices on ranks to the bits of one rank") {
  CHECK(testing::as_ranks(4, "rank of: optimizers on slices") == 0);
  CHECK(testing::as_ranks(6, "rank of: optimizers on slices") == 0);
}

}  // namespace ditto
