// What is put together of a recipe's parts: the preconditioning around a model, and what is refused at the start.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/assembly/assembly.h"
#include "core/assembly/program.h"
#include "tests/support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using torch::Tensor;

Registry& registry() {
  static Registry all(
      std::vector<SearchFolder>{{test::plugin_folder(), "the test"},
                                {test::build_folder() / "tests/fixture_plugins/faulty_model.so", "the test"},
                                {test::build_folder() / "tests/fixture_plugins/faulty_objective.so", "the test"},
                                {test::build_folder() / "tests/fixture_plugins/faulty_optimizer.so", "the test"},
                                {test::build_folder() / "tests/fixture_plugins/preconditioned.so", "the test"}});
  return all;
}

Recipe recipe(const std::vector<std::string>& sets = {}) {
  return Recipe::parse(R"(
[run]
name = "small"
batch = 4
precision = "fp64"
[data]
plugin = "synthetic"
classes = 5
channels = 3
height = 4
width = 4
[encoder.image]
plugin = "identity"
[model]
plugin = "faulty_model"
[scheduler]
plugin = "preconditioned"
[objective]
plugin = "faulty_objective"
[optimizer]
plugin = "faulty_optimizer"
[lr_schedule]
lr = 0.1
)",
                       "small.toml", sets);
}

struct World {
  explicit World(const std::vector<std::string>& sets = {})
      : of(recipe(sets)), assembly(of, registry(), mesh, {.data = true, .objective = true}, {}) {}
  GlooMesh mesh{RankInfo{}, {}, std::chrono::seconds(60)};
  Recipe of;
  Assembly assembly;
};

Batch batch() {
  Batch made;
  made["clean"] = testing::numbers({2, 3, 4, 4}, 1, torch::kDouble);
  made["label"] = torch::tensor({1, 3});
  made.ids = {0, 1};
  made.weights = {1, 1};
  return made;
}

// Of a model whose parameters are zero nowhere.
void fill(Assembly& assembly) {
  torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& entry : assembly.main->layout.entries)
    entry.tensor.copy_(testing::numbers(entry.tensor.sizes(), ++seed, torch::kDouble) * 0.1);
}

TEST_CASE("in training a model is preconditioned by the host, as in sampling") {
  World world;
  auto& assembly = world.assembly;
  fill(assembly);
  LossLedger ledger(0, 2, 1);
  auto program = make_program(assembly, ledger, 2);
  const auto in = program.prepare(batch());
  const auto t = in.at("time").reshape({2, 1, 1, 1});
  CHECK(in.at("x_t").allclose((1 - t) * in.at("clean") + t * in.at("noise")));
  CHECK(in.at("x").allclose((2 - t) * in.at("x_t")));
  CHECK(in.at("t").to(torch::kDouble).allclose(100 * in.at("time")));
  auto stream = program.begin(in);
  program.blocks(0, assembly.main->model->depth(), stream);
  const auto outputs = program.head(stream, in);
  const auto clean = (5 - t) * in.at("x_t") + (3 + t) * outputs.at("prediction");
  const double expected = (clean - in.at("clean")).square().mean().item<double>();
  CHECK(program.loss(stream, outputs, in).item<double>() == doctest::Approx(expected).epsilon(1e-12));
}

TEST_CASE("what an objective measures is a mean by the samples' weights, and no part of the loss") {
  World world;
  LossLedger ledger(0, 2, 1);
  auto in = batch();
  in.weights = {1, 3};
  const auto losses = torch::tensor({1.0, 2.0}, torch::kDouble), measures = torch::tensor({10.0, 20.0}, torch::kDouble);
  ledger.enter(in, {{"a", losses}}, {{"dB", measures}});
  const auto totals = ledger.sum(world.assembly.mesh);
  CHECK(totals.loss == 1.75);
  CHECK(totals.parts.size() == 1);
  CHECK((totals.measures == std::map<std::string, double>{{"dB", 17.5}}));
  CHECK(totals.weighed.size() == 1);
}

TEST_CASE("an objective that does the host's part of preconditioning, or not its own, is refused") {
  const auto said = [](const char* fault) -> std::string {
    World world({"objective.fault=\"" + std::string(fault) + "\""});
    LossLedger ledger(0, 2, 1);
    try {
      make_program(world.assembly, ledger, 2).prepare(batch());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  CHECK(said("makes x").find("\"faulty_objective\": makes \"x\" itself") != std::string::npos);
  CHECK(said("forgets the time").find("\"faulty_objective\": makes no \"time\"") != std::string::npos);
}

TEST_CASE("a model's input that nobody makes is refused, with who makes what") {
  CHECK_THROWS_WITH_AS(
      World({"model.fault=\"takes what nobody makes\""}),
      "small.toml:15:10: model \"faulty_model\" takes \"depth_map\", and nobody makes it; there is only: label (data "
      "\"synthetic\"), clean (encoder \"identity\"), noise (objective \"faulty_objective\"); choose data, an encoder "
      "or "
      "an objective that makes it",
      Error);
}

TEST_CASE("an optimizer whose state has not its parameter's shape is refused when it is made") {
  World right;
  CHECK_NOTHROW(right.assembly.make_optimizer());
  World flat({"optimizer.fault=\"flat state\""});
  CHECK_THROWS_WITH_AS(
      flat.assembly.make_optimizer(),
      doctest::Contains("optimizer 'faulty_optimizer': its state \"momentum\" of \"patches.map.weight\" has "
                        "the shape [96], expected [8, 12]"),
      Error);
  World short_of_one({"optimizer.fault=\"short state\""});
  CHECK_THROWS_WITH_AS(short_of_one.assembly.make_optimizer(), doctest::Contains("tensors for"), Error);
}

}  // namespace
}  // namespace ditto
