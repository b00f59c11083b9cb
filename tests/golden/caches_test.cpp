// Claim (sampling): Step caches along whole trajectories of a small Flux, in fp64, made by caches/make_caches.py:
// the same evaluations are computed, and every state is within 1e-6. What are trajectories of their own there are
// one batch here. And ranks that share samples decide alike.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <support/golden_json.h>
#include <support/open_plugin.h>
#include <support/reference.h>

#include "core/components/components.h"
#include "core/mesh/gloo_mesh.h"
#include "core/network/cached_blocks.h"
#include "tests/unit/ranks.h"

namespace {

using ditto::Batch;
using ditto::Cache;
using ditto::RunningModel;
using nlohmann::json;
using torch::Tensor;

constexpr int64_t kSamples = 3, kTokens = 5, kTextWidth = 12, kPooled = 10;

std::string recipe_of(const json& options) {
  std::string text = "[run]\nprecision = \"fp64\"\n[model]\nplugin = \"flux\"\n";
  for (const auto& [name, value] : options.items()) text += name + " = " + value.dump() + "\n";
  return text;
}

// The model of the golden file.
struct World {
  World(const json& golden, const ditto::Mesh& mesh, const std::string& parallel = "",
        std::vector<ditto::KernelRow> rows = {})
      : recipe(ditto::Recipe::parse(recipe_of(golden.at("options")) + parallel, "test.toml")),
        registry({{ditto::test::plugin_folder(), "test"}}),
        components(recipe, registry) {
    RunningModel::Setting setting{{"model", recipe.model}, {}};
    setting.needs = {{{"x", torch::kFloat, {4, 6, 8}},
                      {"t", torch::kFloat, {}},
                      {"text", torch::kFloat, {-1, kTextWidth}},
                      {"text_mask", torch::kBool, {-1}},
                      {"text_pooled", torch::kFloat, {kPooled}}},
                     4};
    setting.compute = torch::kDouble;
    auto table = components.op_table();
    if (!rows.empty()) table = std::make_shared<ditto::OpTable>(std::move(rows));
    running = std::make_unique<RunningModel>(components, mesh, std::move(table), setting);
    running->cut(components);
    running->fill(RunningModel::Weights::room);
    running->ctx->phase = ditto::Phase::sample;
  }
  ditto::Recipe recipe;
  ditto::Registry registry;
  ditto::Components components;
  std::unique_ptr<RunningModel> running;
};

Tensor drawn(const std::string& name, std::vector<int64_t> shape) {
  shape.insert(shape.begin(), kSamples);
  return ditto::test::values(name, shape, 1.75).to(torch::kDouble);
}

// All samples once for each prefix, one below another.
Batch batch_of(const Tensor& x, double time, const std::vector<std::string>& prefixes) {
  Batch batch;
  ditto::Tensors texts, pooled;
  for (const auto& prefix : prefixes) {
    texts.push_back(drawn(prefix + "text", {kTokens, kTextWidth}));
    pooled.push_back(drawn(prefix + "text_pooled", {kPooled}));
  }
  const auto rows = static_cast<int64_t>(prefixes.size()) * kSamples;
  batch["x"] = torch::cat(ditto::Tensors(prefixes.size(), x));
  batch["t"] = torch::full({rows}, 1000 * time, torch::kDouble).to(torch::kFloat);
  batch["text"] = torch::cat(texts);
  batch["text_mask"] = torch::ones({rows, kTokens}, torch::kBool);
  batch["text_pooled"] = torch::cat(pooled);
  batch.ids.assign(static_cast<size_t>(rows), 0);
  batch.weights.assign(static_cast<size_t>(rows), 1);
  return batch;
}

// The cache, with what was decided.
struct Recorded final : Cache {
  explicit Recorded(std::shared_ptr<Cache> cache_) : cache(std::move(cache_)) {}
  Signal signal() const override { return cache->signal(); }
  Against against() const override { return cache->against(); }
  bool computes(const Evaluation& evaluation) const override {
    changes.push_back(evaluation.change);
    decided.push_back(cache->computes(evaluation));
    return decided.back();
  }
  std::shared_ptr<Cache> cache;
  mutable std::vector<double> changes;
  mutable std::vector<bool> decided;  // by step, branch and sample, without the first step's
};

// Along the golden trajectory by Euler's method from 1, which is noise, to 0.
void follow(const std::string& name) {
  const torch::NoGradGuard no_grad;
  const auto golden = ditto::test::read_json("tests/golden/caches/" + name + ".json");
  const ditto::GlooMesh mesh{ditto::RankInfo{}, {}, std::chrono::seconds(60)};  // one rank
  World world(golden, mesh);
  ditto::test::fill_as_reference(*world.running->model, world.running->model->foreign("diffusers"));
  const auto cache = std::make_shared<Recorded>(
      ditto::test::make_plugin<Cache>("caches", name, {{"threshold", golden.at("threshold").get<double>()}}));
  ditto::CachedBlocks cached(*world.running, cache, {name, "test.toml:1:1", {}});
  const bool guided = golden.contains("guidance");
  const auto prefixes = guided ? std::vector<std::string>{"", "null."} : std::vector<std::string>{""};
  const auto branches = guided ? std::vector<int>{1, 0} : std::vector<int>{1};
  const auto steps = golden.at("steps").get<int64_t>();
  auto x = drawn("x", {4, 6, 8});
  double worst = 0;
  cached.begin();
  for (int64_t step = 0; step < steps; ++step) {
    const double time = 1 - static_cast<double>(step) / static_cast<double>(steps);
    const auto made = cached.predict(batch_of(x, time, prefixes), branches, step + 1 == steps);
    auto v = made.slice(0, 0, kSamples);
    if (guided) {
      const auto without = made.slice(0, kSamples);
      v = without + golden.at("guidance").get<double>() * (v - without);
    }
    x = x - v / static_cast<double>(steps);
    worst = std::max(worst, ditto::test::distance("x." + std::to_string(step),
                                                  golden.at("states").at(static_cast<size_t>(step)), x));
  }
  MESSAGE(name << ": states differ by " << worst);
  CHECK(worst < 1e-6);

  std::vector<bool> theirs;
  double computed = 0;
  const auto& decisions = golden.at("decisions");
  for (size_t step = 0; step < static_cast<size_t>(steps); ++step)
    for (size_t branch = 0; branch < branches.size(); ++branch)
      for (size_t sample = 0; sample < kSamples; ++sample) {
        const bool one = decisions.at(sample).at(step).at(branch).get<bool>();
        computed += one;
        if (step > 0) theirs.push_back(one);
      }
  CHECK(cache->decided == theirs);
  // Of first-block caching the first block is always computed.
  const auto all = static_cast<double>(steps * kSamples) * static_cast<double>(branches.size());
  CHECK(cached.decisions().at("blocks computed") == (guided ? all + 3 * computed : 4 * computed));
  CHECK(cached.decisions().at("blocks skipped") == (guided ? 3 : 4) * (all - computed));
}

}  // namespace

TEST_CASE("first-block caching is diffusers' own, step by step") { follow("first_block"); }

TEST_CASE("TeaCache is its authors' program for Flux, step by step") { follow("teacache"); }

TEST_CASE("rank of: a cache whose ranks find other numbers" * doctest::skip()) {
  const torch::NoGradGuard no_grad;
  const auto golden = ditto::test::read_json("tests/golden/caches/first_block.json");
  const auto mesh = ditto::testing::mesh_of({{ditto::Axis::tensor, 3}, {ditto::Axis::context, 2}});
  // As processors that round in other ways would, and further apart.
  const ditto::KernelRow mean{"sample_mean",
                              "of_this_rank",
                              [](const ditto::OpCall&) { return 9; },
                              [&](const ditto::OpInputs& in) -> ditto::Tensors {
                                return {in.tensor(0).flatten(1).mean(1) + 0.1 * mesh.rank()};
                              },
                              {}};
  World world(golden, mesh, "[parallel]\ntensor = 3\ncontext = 2\ncontext_plugin = \"ring\"\n", {mean});
  for (auto& parameter : world.running->model->parameters()) parameter.normal_(0, 0.3);
  const auto cache = std::make_shared<Recorded>(
      ditto::test::make_plugin<Cache>("caches", "first_block", {{"threshold", golden.at("threshold").get<double>()}}));
  ditto::CachedBlocks cached(*world.running, cache, {"first_block", "test.toml:1:1", {}});
  const auto x = drawn("x", {4, 6, 8});
  cached.begin();
  for (const double time : {1.0, 0.8}) cached.predict(batch_of(time * x, time, {""}), {1}, false);
  const auto found = torch::tensor(cache->changes, torch::kDouble);
  REQUIRE(found.numel() == kSamples);
  CHECK(torch::equal(found, mesh.world().broadcast(found.clone(), 0)));
}

TEST_CASE("ranks that share samples decide by what the first of them finds") {
  CHECK(ditto::testing::as_ranks(6, "rank of: a cache whose ranks find other numbers") == 0);
}
