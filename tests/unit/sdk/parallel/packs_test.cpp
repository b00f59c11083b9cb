// What attention computes in packs: of every sample its own tokens with each other and with its own text, and no more.
//
// Legend: B samples, T tokens, S tokens of text.
#include <algorithm>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/parallel/pack.h>

#include "core/assembly/assembly.h"
#include "core/train/step.h"
#include "tests/unit/context_cut.h"

namespace ditto {
namespace {

using namespace testing;  // of context_cut.h
using torch::Tensor;

TEST_CASE("cross-attention in a pack: the tokens of a sample see the keys of its row, in a slice too") {
  const auto ctx = small_context(torch::kDouble);
  auto stream = stream_of({"", Pattern::cross, true});
  const auto samples = static_cast<int64_t>(kPack.size());
  stream.condition.text_mask_BS = torch::arange(6) < torch::arange(1, samples + 1).unsqueeze(1);
  const auto q = normal({1, tokens_of(stream), 2, 4}, 1), k = normal({samples, 6, 2, 4}, 2), v = normal(k.sizes(), 3);
  const auto whole = ctx->attention(q, k, v, Pattern::cross, stream);
  int64_t start = 0;
  for (int64_t i = 0; i < samples; start += kPack[static_cast<size_t>(i++)]) {
    const auto of_sample = [&](const Tensor& x) { return x.narrow(1, start, kPack[static_cast<size_t>(i)]); };
    Stream alone;
    alone.condition.text_mask_BS = stream.condition.text_mask_BS.narrow(0, i, 1);
    const auto expected = ctx->attention(of_sample(q), k.narrow(0, i, 1), v.narrow(0, i, 1), Pattern::cross, alone);
    CHECK(distance(of_sample(whole), expected) < 1e-15);
  }
  stream.first_token = 5;  // within the first sample, to within the third
  const auto slice = ctx->attention(q.narrow(1, 5, 9), k, v, Pattern::cross, stream);
  CHECK(distance(slice, whole.narrow(1, 5, 9)) < 1e-15);
}

// Rows of texts, of which each sample has its own first tokens; of one some in the middle are hidden.
struct Texts {
  std::vector<int64_t> lengths{6, 1, 4, 2, 5};
  Tensor mask_BS = torch::arange(6).lt(torch::tensor(lengths).unsqueeze(1));
  Texts() { mask_BS.index_put_({2, torch::tensor({0, 2})}, false); }
};

TEST_CASE("a sample of a pack sees its own first keys: results and gradients of the whole row under its mask") {
  const auto ctx = small_context(torch::kDouble);
  const Texts texts;
  const auto samples = static_cast<int64_t>(kPack.size());
  auto stream = stream_of({"", Pattern::cross, true});
  stream.condition.text_mask_BS = texts.mask_BS;
  for (const int64_t first : {int64_t{0}, int64_t{8}}) {  // of all tokens, and of a slice from within the second sample
    stream.first_token = first;
    const int64_t here = first == 0 ? tokens_of(stream) : 7;
    std::vector<Tensors> results;
    std::vector<double> counts;
    for (const bool is_cut : {false, true}) {
      stream.condition.text_lengths = is_cut ? texts.lengths : std::vector<int64_t>();
      Tensors leaves{normal({1, here, 2, 4}, 1), normal({samples, 6, 2, 4}, 2), normal({samples, 6, 2, 4}, 3)};
      for (auto& leaf : leaves) leaf.requires_grad_();
      std::map<std::string, double> flops;
      ctx->flops = &flops;
      const auto out = ctx->attention(leaves[0], leaves[1], leaves[2], Pattern::cross, stream);
      ctx->flops = nullptr;
      (out * normal(out.sizes(), 4)).sum().backward();
      results.push_back({out.detach()});
      for (const auto& leaf : leaves) results.back().push_back(leaf.grad());
      counts.push_back(flops.at("attention") / (4 * 2 * 4));
    }
    for (size_t i = 0; i < results[0].size(); ++i) CHECK(distance(results[1][i], results[0][i]) < 1e-14);
    CHECK(counts[0] == static_cast<double>(here * 6));
    // 8 to 15: one token of the second sample, six of the third.
    CHECK(counts[1] == (first == 0 ? 7 * 6 + 2 * 1 + 13 * 4 + 5 * 2 + 1 * 5 : 1 * 1 + 6 * 4));
  }
}

TEST_CASE("lengths of keys that cannot be are refused") {
  const auto ctx = small_context(torch::kDouble);
  const auto samples = static_cast<int64_t>(kPack.size());
  const auto refused = [&](bool is_packed, const std::vector<int64_t>& lengths, const char* part) {
    const auto stream = stream_of({"", Pattern::cross, is_packed});
    const auto rows = is_packed ? samples : 2;
    const auto q = normal({is_packed ? 1 : 2, tokens_of(stream), 2, 4}, 1), k = normal({rows, 6, 2, 4}, 2);
    const AttentionCall call{.parts = {{q, k, k, stream, {}, lengths}}, .pattern = Pattern::cross};
    CHECK_THROWS_WITH_AS(ctx->attention(call), doctest::Contains(part), Error);
  };
  refused(true, {6, 6, 6, 6, 7}, "[6, 6, 6, 6, 7] for 5 samples and rows of 6 keys");
  refused(true, {6, 6, 0, 6, 6}, "[6, 6, 0, 6, 6]");
  refused(true, {6, 6}, "for 5 samples");
  refused(false, {6, 6}, "outside of cross-attention of a pack");
}

TEST_CASE("what is not known of a text's length is that of its part") {
  const auto condition = [](int64_t samples, int64_t tokens, std::vector<int64_t> lengths) {
    return Conditioning{torch::zeros({samples, 4}), torch::zeros({samples, tokens, 4}), {}, std::move(lengths)};
  };
  Batch batch;
  batch.parts.resize(2);
  batch.parts[0].ids = {0, 1};
  batch.parts[1].ids = {2};
  const auto packed = pack({condition(2, 5, {3, 1}), condition(1, 7, {})}, batch);
  CHECK(packed.text_lengths == std::vector<int64_t>{3, 1, 7});
  CHECK((packed.text_BSE.sizes() == at::IntArrayRef({3, 7, 4})));
}

constexpr int64_t kWidth = 48, kDepth = 2, kPatch = 2;  // of the tiny recipes

struct Measures {
  double frames, places, text;
  double tokens() const { return frames * places; }
  // Products that a block's attention makes of it.
  double products(const std::string& model) const {
    const double all = tokens() * (tokens() + text);
    return model == "dit_text" ? all : all + tokens() * (places + frames);
  }
};

// A run of packs of several sizes, with a text of another length for each class.
struct Run {
  Run(const std::string& name, const Mesh& mesh, int64_t batch, std::vector<std::string> sets)
      : model(name), recipe(read(name, batch, std::move(sets))), assembly(recipe, registry, mesh, wanted(), {}) {}

  static Recipe read(const std::string& model, int64_t batch, std::vector<std::string> sets) {
    const std::string sizes = model == "st_dit" ? R"(["8x8", "2x4x8", "4x8x4", "1x12x8", "3x4x4"])"
                                                : R"(["8x8", "4x8", "12x8", "8x4", "12x12"])";
    sets.insert(sets.end(), {"data.sizes=" + sizes, "batch.plan=packs", "batch.tokens=1000", "run.micro_batch=12",
                             "run.precision=fp64", "run.batch=" + std::to_string(batch), "optimizer.plugin=sgd"});
    return Recipe::read(std::string(DITTO_SOURCE_DIR) + "/configs/" + model + "_tiny.toml", sets);
  }
  static AssemblyParts wanted() {
    AssemblyParts parts;
    parts.data = parts.objective = true;
    return parts;
  }

  Measures sample(int64_t place) {
    auto sides = loader.size_of(place);
    if (sides.size() == 2) sides.insert(sides.begin(), 1);
    const auto text = loader.next({place, 1}).at("text").size(1);
    return {static_cast<double>(sides[0]), static_cast<double>(sides[1] * sides[2] / (kPatch * kPatch)),
            static_cast<double>(text)};
  }

  std::string model;
  Recipe recipe;
  Registry registry{std::vector<SearchFolder>{{test::plugin_folder(), "the test"}}};
  Assembly assembly;
  Loader loader{assembly.train_data, recipe.loader, 0, [](const std::string&) {}};
};

// Of a step on all ranks: what attention has counted, and what the samples' own sizes say.
void check_products(const std::string& model, const Mesh& mesh, int64_t batch, std::vector<std::string> sets) {
  CAPTURE(model);
  Run run(model, mesh, batch, std::move(sets));
  const auto optimizer = run.assembly.make_optimizer();
  Ema ema(run.assembly.networks->learned(), run.recipe.ema);
  TrainingStep training(run.assembly, run.loader, *optimizer, ema);
  std::map<std::string, double> flops;
  run.assembly.main->ctx->flops = &flops;
  training.run(0);
  run.assembly.main->ctx->flops = nullptr;
  const auto counted = mesh.world().all_reduce(torch::tensor({flops["attention"]}, torch::kDouble)).item<double>();
  double products = 0;
  std::set<double> texts;
  const auto step =
      StepShares(run.recipe.run, run.recipe.batch, mesh, run.assembly.sizes(run.loader)).step(0, 0, Phase::train);
  size_t packs = 0;
  for (const auto& places : step.micro_batches) {
    std::vector<Measures> samples;
    std::set<std::vector<int64_t>> sizes;
    double longest = 0;
    for (const int64_t place : places.list) {
      samples.push_back(run.sample(place));
      sizes.insert(run.loader.size_of(place));
      longest = std::max(longest, samples.back().text);
    }
    packs += sizes.size() > 1;
    for (auto& sample : samples) {
      texts.insert(sample.text);
      if (sizes.size() == 1) sample.text = longest;  // no pack: texts are padded
      products += sample.products(model);
    }
  }
  CHECK(2 * packs > step.micro_batches.size());
  CHECK(texts.size() > 2);
  CHECK(counted == 4 * kWidth * kDepth * products);
}

void check_products_of_both(const Mesh& mesh, int64_t batch, const std::vector<std::string>& sets) {
  for (const std::string model : {"dit_text", "st_dit"}) check_products(model, mesh, batch, sets);
}

TEST_CASE("in packs attention computes each sample's tokens squared and tokens times its text, exactly") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(60));
  check_products_of_both(mesh, 12, {});
  check_products_of_both(mesh, 12, {"objective.condition_dropout=0.6"});  // a dropped text is as long as it was
}

TEST_CASE("rank of: products of packs on data ranks" * doctest::skip()) {
  const auto mesh = mesh_of({});
  check_products_of_both(mesh, 12 * mesh.world_size(), {});
}
TEST_CASE("rank of: products of packs around a ring" * doctest::skip()) {
  const auto mesh = mesh_of({{Axis::context, 2}});
  check_products_of_both(mesh, 12, {"parallel.context=2", "parallel.context_plugin=ring"});
}
TEST_CASE("rank of: products of packs in a pipeline" * doctest::skip()) {
  const auto mesh = mesh_of({{Axis::pipeline, 2}});
  for (const std::string conditioning : {"carried", "replicated"})
    check_products_of_both(mesh, 12, {"parallel.pipeline=2", "parallel.pipeline_conditioning=" + conditioning});
}

TEST_CASE("and so on two and three data ranks, around a ring and in a pipeline, all ranks together") {
  CHECK(as_ranks(2, "rank of: products of packs on data ranks") == 0);
  CHECK(as_ranks(3, "rank of: products of packs on data ranks") == 0);
  CHECK(as_ranks(2, "rank of: products of packs around a ring") == 0);
  CHECK(as_ranks(2, "rank of: products of packs in a pipeline") == 0);
}

TEST_CASE("the operations of a pack are those of its samples one by one") {
  for (const std::string model : {"dit_text", "st_dit"}) {
    CAPTURE(model);
    const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(60));
    Run run(model, mesh, 12, {});
    FlopCounter counter(run.assembly.components, *run.assembly.main);
    const auto encoded = [&](Places places) {
      return run.assembly.networks->encode(run.loader.next(std::move(places)), ditto::Phase::train);
    };
    double one_by_one = 0;
    for (int64_t place = 0; place < 12; ++place) one_by_one += counter.forward(encoded({place, 1}));
    const auto pack = encoded({0, 12});
    CHECK(pack.parts.size() > 2);
    CHECK(counter.forward(pack) == one_by_one);
  }
}

}  // namespace
}  // namespace ditto
