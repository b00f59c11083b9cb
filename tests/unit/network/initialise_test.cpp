// Claim (layouts): What a rank holds after cuts is filled with the numbers of the whole model, and with no more than
// those.
#include <doctest/doctest.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/support/checkpoint_world.h"
#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using testing::FullModel;
using testing::FullOptions;
using testing::Named;
using torch::Tensor;

// A mesh of one process that says it is a rank of more: cuts need no peers.
class RankOf final : public test::FakeMesh {
 public:
  RankOf(std::map<Axis, int> degrees, int rank) : FakeMesh(std::move(degrees), rank) {
    for (const Axis axis : kAxes)
      groups_.emplace(axis, Group(index(axis), size(axis), std::string(name(axis)), nullptr));
  }
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override { return axes.empty() ? alone_ : groups_.at(*axes.begin()); }

 private:
  Group alone_;
  std::map<Axis, Group> groups_;
};

// A model as the host makes it: without numbers until what is not this rank's is cut off.
struct Made {
  Made() {
    torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters()) free_storage(parameter);
    layout = Layout::of(model);
  }
  void cut(const Mesh& mesh, const std::vector<std::string>& ids) {
    Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
    for (const auto& id : ids) {
      OptionReader reader(OptionMap{"parallel", "the test", {}});
      strategies.push_back(registry.factory<ParallelStrategy>(id, "the test")
                               .make(reader, {&mesh, true, true, torch::kFloat, model.depth()}));
    }
    for (auto& strategy : strategies) strategy->claim(layout);
    for (auto& strategy : strategies) strategy->shard(layout);
  }
  // Of the model's leaves and the layout's tensors, each counted once.
  int64_t bytes() {
    std::map<const void*, int64_t> storages;
    const auto count = [&](const Tensor& tensor) {
      storages[tensor.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(tensor.storage().nbytes());
    };
    for (const auto& parameter : model.parameters()) count(parameter);
    for (const auto& entry : layout.entries) count(entry.tensor);
    int64_t sum = 0;
    for (const auto& [storage, size] : storages) sum += size;
    return sum;
  }

  FullModel model{{.depth = 3}};
  Layout layout;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;
};

void check_cuts(const std::map<Axis, int>& degrees, const std::vector<std::string>& ids) {
  Made whole;
  initialise(whole.layout, Random(11));
  std::map<std::string, Tensor> seen;
  for (int number = 0; number < RankOf(degrees, 0).world_size(); ++number) {
    CAPTURE(number);
    const RankOf mesh(degrees, number);
    Made rank;
    rank.cut(mesh, ids);
    CHECK(rank.bytes() == 0);
    initialise(rank.layout, Random(11));
    int64_t own = 0;
    for (const auto& entry : rank.layout.entries) {
      CAPTURE(entry.name);
      const auto& full = whole.layout.at(entry.name).tensor;
      CHECK(entry.tensor.sizes().vec() == local_shape(entry));
      own += static_cast<int64_t>(entry.tensor.nbytes());
      auto& covered = seen.try_emplace(entry.name, torch::zeros(full.sizes())).first->second;
      for (const auto& slice : entry.slices()) {
        CHECK(testing::same_bits(testing::rectangle(entry.tensor.detach(), slice.local_start, slice.size),
                                 testing::rectangle(full.detach(), slice.global_start, slice.size)));
        testing::rectangle(covered, slice.global_start, slice.size).fill_(1);
      }
    }
    CHECK(rank.bytes() == own);
    CHECK(own < whole.bytes());
  }
  CHECK(seen.size() == whole.layout.entries.size());
  for (const auto& [name, covered] : seen) CHECK_MESSAGE(covered.all().item<bool>(), name);
}

TEST_CASE("what is cut first and filled after has the bits of the whole, and no rank holds more than its share") {
  check_cuts({{Axis::tensor, 2}}, {"tensor"});
  check_cuts({{Axis::shard, 3}}, {"fsdp"});
  check_cuts({{Axis::expert, 2}}, {"expert"});
  check_cuts({{Axis::pipeline, 3}}, {"pipeline"});
  check_cuts({{Axis::tensor, 2}, {Axis::shard, 2}}, {"tensor", "fsdp"});
  check_cuts({{Axis::tensor, 2}, {Axis::expert, 2}, {Axis::shard, 2}}, {"tensor", "expert", "fsdp"});
  check_cuts({{Axis::pipeline, 2}, {Axis::tensor, 2}, {Axis::shard, 3}}, {"pipeline", "tensor", "fsdp"});
}

TEST_CASE("of the ranks that add up a layer's output the first adds its bias, and no other") {
  for (const int rank : {0, 1}) {
    const RankOf mesh({{Axis::tensor, 2}}, rank);
    Made made;
    made.cut(mesh, {"tensor"});
    int layers = 0;
    for (const auto& entry : made.layout.entries)
      if (const auto* cut = entry.layer ? entry.layer->cut(Axis::tensor) : nullptr;
          cut && cut->output == LayerCut::Values::partial) {
        CAPTURE(entry.name);
        CHECK(entry.layer->adds_bias == (rank == 0));
        ++layers;
      }
    CHECK(layers > 3);
  }
}

TEST_CASE("xavier's bound is that of Glorot and Bengio") {
  CHECK(Init::xavier(2, 4).kind == Init::Kind::uniform);
  CHECK(Init::xavier(2, 4).scale == 1.0);
  CHECK(Init::xavier(20, 4).scale == 0.5);
}

// FNV-1a, 64 bits.
int64_t id_of(const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return static_cast<int64_t>(hash);
}

// A run of before goes on, and another program that knows the name and the shape can make the same.
TEST_CASE("initial weights are draws by seed, full name and global shape, scaled as the parameter says") {
  Made whole;
  const Random random(23);
  initialise(whole.layout, random);
  int64_t drawn = 0;
  for (const auto& entry : whole.layout.entries) {
    CAPTURE(entry.name);
    const auto init = entry.parameter.init();
    const int64_t ids[] = {id_of(entry.name)};
    Tensor expected;
    switch (init.kind) {
      case Init::Kind::zeros: expected = torch::zeros(entry.full_shape); break;
      case Init::Kind::ones: expected = torch::ones(entry.full_shape); break;
      case Init::Kind::normal:
        expected = random.normal(Purpose::initial_weights, ids, entry.full_shape, torch::kDouble)[0] * init.scale;
        break;
      case Init::Kind::uniform:
        expected = (random.uniform(Purpose::initial_weights, ids, entry.full_shape)[0] * 2 - 1) * init.scale;
        break;
    }
    drawn += init.kind == Init::Kind::normal || init.kind == Init::Kind::uniform;
    CHECK(testing::same_bits(entry.tensor.detach(), expected.to(torch::kFloat)));
  }
  CHECK(drawn > 20);
}

TEST_CASE("a prefix is part of the name: two networks with equal names have weights of their own") {
  FullModel first{FullOptions{}}, second{FullOptions{}};
  auto plain = Layout::of(first), named = Layout::of(second, "objective.");
  initialise(plain, Random(5));
  initialise(named, Random(5));
  REQUIRE(plain.entries.size() == named.entries.size());
  for (size_t i = 0; i < plain.entries.size(); ++i)
    CHECK(named.entries[i].name == "objective." + plain.entries[i].name);
  CHECK_FALSE(torch::equal(plain.at("embed.weight").tensor, named.at("objective.embed.weight").tensor));
}

}  // namespace
}  // namespace ditto
