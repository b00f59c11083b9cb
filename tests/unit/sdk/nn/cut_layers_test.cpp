// Layers that declare how they may be cut: against one rank, on real ranks; maps as fields of the stream under every
// strategy that can serve them; and declarations that are wrong.
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/unit/sdk/nn/map_model.h"

namespace ditto {
namespace {

using testing::has;
using testing::MapOptions;
using testing::MapRun;
using testing::Named;
using torch::Tensor;

// Prediction, input gradient, every parameter's gradient and the norm, in double precision.
void check_rounding(const Mesh& mesh, const std::vector<Named>& strategies, int64_t micro_batches) {
  const auto alone = testing::mesh_of_one();
  MapRun whole(alone, {}, torch::kDouble, {}), rank(mesh, {}, torch::kDouble, strategies);
  const auto largest = [](const Tensor& x) { return x.abs().max().item<double>(); };
  const auto close = [&](const Tensor& a, const Tensor& b, const Tensor& of) {
    return largest(a - b) <= 1e-12 * largest(of);
  };
  const auto prediction = whole.predict(7);
  CHECK(close(rank.predict(7), prediction, prediction));
  {  // a backward outside of a step leaves gradients behind
    MapRun other(mesh, {}, torch::kDouble, strategies);
    const auto gradient = MapRun(alone, {}, torch::kDouble, {}).input_gradient(8);
    CHECK(close(other.input_gradient(8), gradient, gradient));
  }
  whole.step(micro_batches, 1);
  rank.step(micro_batches, 1);
  const auto expected = whole.gradients();
  for (const auto& entry : rank.layout.entries) {
    CAPTURE(entry.name);
    const Tensor& reference = expected.at(entry.name);
    CHECK(largest(reference) > 1e-6);
    // A bias's gradient is a sum over all places, whose terms nearly cancel out in front of a norm: its rounding is
    // that of the layer's weight.
    const auto weight = expected.find(entry.name.substr(0, entry.name.rfind('.')) + ".weight");
    const double scale = std::max(largest(reference), weight == expected.end() ? 0 : largest(weight->second));
    CHECK(entry.tensor.sizes().vec() == local_shape(entry));
    CHECK(entry.is_copy(Axis::tensor) == (entry.declared(Axis::tensor) == nullptr));
    for (const auto& slice : entry.slices()) {
      const auto there = testing::rectangle(reference, slice.global_start, slice.size);
      const auto here = testing::rectangle(entry.tensor.grad(), slice.local_start, slice.size);
      CHECK(largest(here - there) <= 1e-12 * scale);
    }
  }
  CHECK(grad_norm(rank.layout, mesh) == doctest::Approx(grad_norm(whole.layout, alone)).epsilon(1e-13));
}

TEST_CASE("rank of: layers cut along tensor" * doctest::skip()) {
  check_rounding(testing::mesh_of({{Axis::tensor, rank_info().world_size}}), {{"tensor"}}, 2);
}
TEST_CASE("rank of: layers cut along tensor beside others" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}, {Axis::shard, 2}});
  check_rounding(mesh, {{"tensor"}, {"recompute"}, {"fsdp"}}, 2);
}

TEST_CASE(
    "convolutions, norms, tables, gated perceptrons and a stranger's layer cut along tensor compute as one rank") {
  CHECK(testing::as_ranks(2, "rank of: layers cut along tensor") == 0);
  CHECK(testing::as_ranks(3, "rank of: layers cut along tensor") == 0);
}

TEST_CASE("they do so beside fsdp and recomputation too") {
  CHECK(testing::as_ranks(4, "rank of: layers cut along tensor beside others") == 0);
}

// In single precision: all gradients that are here, and the prediction.
void check_bits(const Mesh& mesh, const std::vector<Named>& strategies) {
  const auto alone = testing::mesh_of_one();
  MapRun whole(alone, {}, torch::kFloat, {}), rank(mesh, {}, torch::kFloat, strategies);
  for (const int64_t micro_batches : {2, 4}) {
    whole.step(micro_batches, micro_batches);
    rank.step(micro_batches, micro_batches);
    const auto expected = whole.gradients();
    CHECK(!rank.layout.entries.empty());
    for (const auto& entry : rank.layout.entries) {
      CAPTURE(entry.name);
      for (const auto& slice : entry.slices()) {
        const auto there = testing::rectangle(expected.at(entry.name), slice.global_start, slice.size);
        const auto here = testing::rectangle(entry.tensor.grad(), slice.local_start, slice.size);
        CHECK(testing::same_bits(here.contiguous(), there.contiguous()));
      }
    }
  }
  CHECK(testing::same_bits(rank.predict(5), whole.predict(5)));
}

TEST_CASE("rank of: maps under ddp" * doctest::skip()) { check_bits(testing::mesh_of({}), {{"ddp"}}); }
TEST_CASE("rank of: maps under zero2" * doctest::skip()) {
  check_bits(testing::mesh_of({{Axis::shard, 2}}), {{"zero2"}});
}
TEST_CASE("rank of: maps under fsdp" * doctest::skip()) {
  check_bits(testing::mesh_of({{Axis::shard, 2}}), {{"fsdp"}});
}
TEST_CASE("rank of: maps under pipeline" * doctest::skip()) {
  check_bits(testing::mesh_of({{Axis::pipeline, 2}}), {{"pipeline"}});
}
TEST_CASE("rank of: maps under an interleaved pipeline, recomputed" * doctest::skip()) {
  check_bits(testing::mesh_of({{Axis::pipeline, 2}}), {{"recompute"}, {"pipeline", {{"virtual_stages", int64_t{2}}}}});
}

TEST_CASE("a UNet's maps and skips, fields without tokens, pass through ddp, zero2, fsdp and pipelines bit for bit") {
  for (const std::string of : {"ddp", "zero2", "fsdp", "pipeline", "an interleaved pipeline, recomputed"}) {
    CAPTURE(of);
    CHECK(testing::as_ranks(2, "rank of: maps under " + of) == 0);
  }
}

TEST_CASE("recomputed and offloaded, maps and skips keep their bits") {
  check_bits(testing::mesh_of_one(), {{"recompute"}});
  check_bits(testing::mesh_of_one(), {{"recompute", {{"recompute_every", int64_t{2}}}}, {"offload"}});
}

std::string refusal(const Mesh& mesh, const MapOptions& options, const Named& strategy, ErrorKind kind) {
  try {
    MapRun rank(mesh, options, torch::kDouble, {strategy});
    rank.predict(7);
  } catch (const Error& error) {
    CHECK((error.kind() == kind));
    return error.what();
  }
  return "not refused";
}

TEST_CASE("rank of: refused maps" * doctest::skip()) {
  const auto tensor = testing::mesh_of({{Axis::tensor, 2}});
  has(refusal(tensor, {.groups = 3}, {"tensor"}, ErrorKind::config),
      "2 does not divide the 3 groups of \"blocks.0.norm2\"");
  has(refusal(tensor, {.norms_whole = true}, {"tensor"}, ErrorKind::plugin),
      "group norm: is given [2, 6, 8, 8], with weights of 12 channels here");
  const auto text = refusal(tensor, {.is_token_local = true}, {"tensor", {{"sequence", true}}}, ErrorKind::config);
  has(text, "parallel.sequence: cuts a sample by places, and \"blocks.0.norm1\"");
}
TEST_CASE("rank of: refused places" * doctest::skip()) {
  const auto context = testing::mesh_of({{Axis::context, 2}});
  for (const std::string id : {"ring", "ulysses", "fastseq", "spatiotemporal"}) {
    CAPTURE(id);
    has(refusal(context, {.is_token_local = true}, {id}, ErrorKind::config),
        "parallel.context: cuts a sample by places, and \"blocks.0.norm1\"");
    has(refusal(context, {}, {id}, ErrorKind::config), "token_local");
  }
}

TEST_CASE("groups that are not divided, a norm over a rank's channels alone, and places that are cut are refused") {
  CHECK(testing::as_ranks(2, "rank of: refused maps") == 0);
  CHECK(testing::as_ranks(2, "rank of: refused places") == 0);
}

// A layer that declares whatever it is told.
struct Declares : CutLayer {
  explicit Declares(LayerCut cut) {
    parameter("weight", {6, 4}, Init::zeros());
    parameter("bias", {6}, Init::zeros());
    declare(Axis::tensor, std::move(cut), "my layer");
  }
};
struct Holder : Layer {
  explicit Holder(LayerCut cut) { make<Declares>("mine", std::move(cut)); }
};

std::string refusal(LayerCut cut) {
  try {
    Holder holder(std::move(cut));
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::plugin));
    return error.what();
  }
  return "not refused";
}

TEST_CASE("a declaration that its parameter's shape does not allow is refused when the layer is made") {
  const std::string of_weight = "layer \"mine\": my layer: its \"weight\" [6, 4] is declared ";
  has(refusal({{{"weight", 2}}}), of_weight + "to be cut along dim 2; expected a dim from 0 to 1");
  has(refusal({{{"weight", -1}}}), "to be cut along dim -1");
  has(refusal({{{"weight", 0, {2, 3}}}}),
      of_weight + "to have parts that add up to 5 along dim 0; expected parts that add up to 6");
  has(refusal({{{"weight", 0, {4, 2}, 4}}}), of_weight + "to have a part of 2 along dim 0; expected whole units of 4");
  has(refusal({{{"weight", 0, {8, -2}}}}), "to have a part of -2 along dim 0");
  has(refusal({{{"weight", 0, {}, 0}}}), "to have units of 0 along dim 0");
  has(refusal({{{"wieght", 0}}}), "declares how \"wieght\" may be cut, and has none; its own parameters are");
  has(refusal(LayerCut{}), "declares a cut along tensor of no parameter");
  LayerCut gathers{{{"weight", 0}}, "outputs"};
  gathers.gathered = true;
  has(refusal(gathers), "declares that its outputs are gathered, and not that they are cut");
  CHECK(refusal({{{"weight", 0, {4, 2}, 2}, {"bias", 0}}}) == "not refused");
}

struct Wrong : Layer {
  Wrong() { linear("qkv", 4, 12, Split::columns({4, 4})); }
};
struct IdleModel : Model {
  Conditioning condition(const Batch&, Context&) override { return {}; }
  Stream tokens(const Batch&, Context&) override { return {}; }
  int64_t depth() const override { return 1; }
  Stream run_block(int64_t, Stream stream, Context&) override { return stream; }
  Tensor head(const Stream&, Context&) override { return {}; }
  TensorSpecs takes() const override { return {}; }
};

struct WrongModel : IdleModel {
  WrongModel() { add_block<Wrong>(0); }
};

struct TableModel : IdleModel {
  TableModel() { table = add<Embedding>(Unit::condition, "table", 5, 8, Split::columns({8}).gathered()); }
  std::shared_ptr<Embedding> table;
};

TEST_CASE("rank of: a table under one number" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  TableModel model;
  testing::fill(model, torch::kFloat);
  auto layout = Layout::of(model);
  const auto& leaf = layout.entries.at(0).tensor;
  const auto table = leaf.detach().clone();
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader none(OptionMap{"parallel", "the test", {}});
  const auto strategy =
      registry.factory<ParallelStrategy>("tensor", "the test").make(none, {.mesh = &mesh, .token_leaf = 4});
  strategy->shard(layout);
  const auto ctx = testing::small_context(torch::kFloat);
  ctx->token_leaf = 4;
  const auto index = torch::tensor({3, 0, 3}), grad = torch::rand({3, 8});
  const auto rows = model.table->forward(index, *ctx);
  CHECK(torch::equal(rows, table.index_select(0, index)));
  rows.backward(grad);
  const auto expected = torch::zeros({5, 8}).index_add_(0, index, grad);
  CHECK(torch::equal(leaf.grad(), expected.narrow(1, 4 * mesh.rank(), 4)));
}

TEST_CASE("a table that is cut by its width goes through no sum, of leaves or others") {
  CHECK(testing::as_ranks(2, "rank of: a table under one number") == 0);
}

TEST_CASE("a Split that does not fit names block, layer and parameter") {
  try {
    WrongModel model;
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::plugin));
    has(error.what(),
        "block 0: layer \"qkv\": linear layer: its \"weight\" [12, 4] is declared to have parts that add up "
        "to 8 along dim 0");
  }
  CHECK_THROWS_AS(GroupNorm(4, 6), Error);
  CHECK_THROWS_AS(GroupNorm(3, 6, Split::columns({6})), Error);
  CHECK_THROWS_AS(GroupNorm(3, 6, Split::along({3, 3})), Error);  // cuts a group
  CHECK_THROWS_AS(Conv2d({3, 6}, Split::along({6})), Error);
  CHECK_THROWS_AS(Conv2d({3, 6}, Split::rows().in_parts({2, 2})), Error);
  CHECK_THROWS_AS(Conv3d({3, 6, {3, 3}}), Error);
  CHECK_THROWS_AS(Conv2d({3, 6, {3}, {0}}), Error);
  CHECK_THROWS_AS(Conv2d({3, 6, {3}, {1}, {1}, {-1}}), Error);
  CHECK_THROWS_AS(Conv2d({3, 6, {3}, {1}, {1}, {1, 1, 1}}), Error);
  CHECK_THROWS_AS(Embedding(3, 6, Split::rows()), Error);
}

}  // namespace
}  // namespace ditto
