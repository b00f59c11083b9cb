// Token routing: which tokens are kept, what becomes of them and of the others; on one rank and on several.
//
// Legend: B samples, T tokens.
#include <algorithm>

#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using testing::check_full;
using testing::FullOptions;
using testing::Named;
using torch::Tensor;

const TokenRoute kRoute{1, 3, 0.4};
const Random kRandom(1);  // small_context's

std::vector<int64_t> numbers(const Tensor& x) { return {x.data_ptr<int64_t>(), x.data_ptr<int64_t>() + x.numel()}; }

TEST_CASE(
    "tokens are kept by seed, sample and place alone: as many as the ratio leaves, in their order, one at least") {
  const TokenRouter half({0, 1, 0.5}, Random(3));
  CHECK(numbers(half.kept(7, 16)) == std::vector<int64_t>{4, 5, 6, 8, 9, 11, 13, 14});
  CHECK(numbers(half.kept(8, 16)) == std::vector<int64_t>{0, 2, 7, 9, 10, 11, 12, 13});
  CHECK(numbers(TokenRouter({0, 1, 0.5}, Random(4)).kept(7, 16)) != numbers(half.kept(7, 16)));
  CHECK(half.kept(7, 15).size(0) == 8);
  CHECK(half.kept(7, 1).size(0) == 1);
  CHECK(TokenRouter({0, 1, 0.999}, Random(3)).kept(7, 16).size(0) == 1);
  CHECK(numbers(TokenRouter({0, 1, 0}, Random(3)).kept(7, 4)) == std::vector<int64_t>{0, 1, 2, 3});
  // Whoever keeps more keeps those as well.
  const auto few = numbers(TokenRouter({0, 1, 0.8}, Random(3)).kept(7, 16)), many = numbers(half.kept(7, 16));
  CHECK(std::includes(many.begin(), many.end(), few.begin(), few.end()));
  auto times = torch::zeros({16});
  for (int64_t id = 0; id < 4000; ++id) times.index_add_(0, half.kept(id, 16), torch::ones({8}));
  CHECK((times / 4000 - 0.5).abs().max().item<float>() < 0.032);  // 4 standard deviations: 0.032
}

// A sample after the route, its blocks run by hand on its own kept tokens.
Tensor by_hand(Model& model, const Batch& batch, int64_t i, Context& ctx) {
  Batch one;
  for (const auto& [name, x] : batch.tensors) one[name] = x.narrow(0, i, 1);
  one.ids = {batch.ids[static_cast<size_t>(i)]};
  one.weights = {1};
  auto s = ModelProgram(model, ctx).begin(one);
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) s = model.run_block(block, std::move(s), ctx);
  };
  run(0, kRoute.start);
  const auto kept = TokenRouter(kRoute, kRandom).kept(one.ids[0], s.tokens());
  const auto rotary = s.rotary_TK, before = s.x_BTD;
  const auto grid = s.grid;
  s.x_BTD = before.index_select(1, kept);
  s.rotary_TK = rotary.index_select(0, kept);
  s.grid = {1, 1, kept.size(0)};
  run(kRoute.start, kRoute.end);
  s.x_BTD = before.index_copy(1, kept, s.x_BTD);
  s.rotary_TK = rotary, s.grid = grid;
  run(kRoute.end, model.depth());
  return model.head(s, ctx);
}

TEST_CASE("blocks of the route run each sample's kept tokens at their places, with their gradients; the others wait") {
  for (const bool is_joint : {false, true}) {
    CAPTURE(is_joint);
    const FullOptions options{.depth = 4, .tokens = 11, .is_joint = is_joint};
    const auto batch = testing::full_batch(5, options, torch::kDouble);
    const auto ctx = testing::small_context(torch::kDouble);
    const auto gradients = [&](const std::function<Tensor(Model&)>& predict) {
      const auto model = testing::full_model(options, torch::kDouble);
      const auto y = predict(*model);
      (y * batch.at("target")).sum().backward();
      std::map<std::string, Tensor> made{{"prediction", y.detach()}};
      for (const auto& item : model->named_parameters()) made[item.key()] = item.value().grad();
      return made;
    };
    const auto expected = gradients([&](Model& model) {
      return torch::cat({by_hand(model, batch, 0, *ctx), by_hand(model, batch, 1, *ctx)});
    });
    const auto found = gradients([&](Model& model) {
      ModelProgram program(model, *ctx);
      program.route(kRoute);
      auto stream = program.begin(batch);
      program.blocks(0, model.depth(), stream);
      return program.head(stream, batch).at("prediction");
    });
    for (const auto& [name, one] : expected) {
      CAPTURE(name);
      CHECK((found.at(name) - one).abs().max().item<double>() <= 1e-12 * one.abs().max().item<double>());
    }
  }
}

TEST_CASE("a sample of a pack keeps the tokens that it keeps alone; sampling and validation run all of them") {
  FullOptions options{.depth = 4, .tokens = 11, .is_packed = true};
  const auto ctx = testing::small_context(torch::kDouble);
  const auto model = testing::full_model(options, torch::kDouble);
  const auto batch = testing::full_batch(5, options, torch::kDouble);
  ModelProgram program(*model, *ctx), plain(*model, *ctx);
  program.route(kRoute);
  auto stream = program.begin(batch);
  program.blocks(0, 2, stream);
  const TokenRouter router(kRoute, kRandom);
  CHECK(stream.packing->lengths == std::vector<int64_t>{2, 5});  // of 3 and 8
  CHECK(stream.x_BTD.size(1) == 7);
  const auto kept = torch::cat({router.kept(10, 3), router.kept(11, 8) + 3});
  CHECK(stream.rotary_TK.equal(rotary_table({1, 1, 11}, testing::kHeadWidth).to(torch::kDouble).index_select(0, kept)));
  program.blocks(2, 4, stream);
  CHECK(stream.packing->lengths == std::vector<int64_t>{3, 8});
  CHECK(stream.x_BTD.size(1) == 11);
  for (const auto phase : {Phase::evaluate, Phase::sample}) {
    ctx->phase = phase;
    auto all = program.begin(batch), one = plain.begin(batch);
    program.blocks(0, 4, all), plain.blocks(0, 4, one);
    CHECK(all.x_BTD.equal(one.x_BTD));
  }
}

TEST_CASE("what cannot lose tokens is refused by name") {
  const auto ctx = testing::small_context(torch::kDouble);
  const auto refused = [&](const FullOptions& options, const TokenRoute& route, const char* what,
                           bool has_frames = false) {
    const auto model = testing::full_model(options, torch::kDouble);
    const auto batch = testing::full_batch(5, options, torch::kDouble);
    const auto run = [&] {
      ModelProgram program(*model, *ctx);
      program.route(route);
      auto stream = program.begin(batch);
      if (has_frames) stream.condition.cond_BD = stream.condition.cond_BD.unsqueeze(1);
      program.blocks(0, model->depth(), stream);
    };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains(what), Error);
  };
  refused({.depth = 4}, {1, 5, 0.5}, "tread: routes tokens around blocks 1 to 4, and the model has 4");
  refused({.depth = 4}, {3, 3, 0.5}, "tread: routes tokens around blocks 3 to 2");
  refused({.depth = 4, .is_token_local = false}, kRoute, "(token_local)");
  refused({.depth = 4}, {0, 4, 0.5}, "a time for each frame", true);
  refused({.depth = 4}, {0, 2, 0.5}, "\"skip.0\" is made by a block that some tokens go around");
}

// A process is of one mesh.
void check_routed(const Degrees& degrees, const std::vector<std::vector<Named>>& strategies) {
  const auto mesh = testing::mesh_of(degrees);
  for (const bool packed : {false, true})
    for (const auto& some : strategies) {
      CAPTURE(packed);
      CAPTURE(some[0].id);
      check_full(mesh,
                 {.depth = 4, .tokens = 11, .is_packed = packed, .is_joint = true, .dropout = 0.2, .route = kRoute},
                 some, 2);
    }
}
const Named kSequence{"tensor", {{"sequence", true}}};

TEST_CASE("rank of: routed tokens, cut" * doctest::skip()) {
  check_routed({{Axis::context, 2}},
               {{{"ring"}}, {{"ulysses"}}, {{"fastseq"}}, {{"spatiotemporal"}}, {{"ring"}, {"recompute"}}});
}
TEST_CASE("rank of: routed tokens in regions" * doctest::skip()) {
  check_routed({{Axis::context, 2}, {Axis::tensor, 2}}, {{kSequence, {"ring"}}});
}
TEST_CASE("rank of: routed tokens along a pipeline" * doctest::skip()) {
  check_routed({{Axis::context, 2}, {Axis::pipeline, 2}}, {{{"ring"}, {"pipeline"}}});
}

TEST_CASE("the same tokens are routed where they are cut, and from stage to stage: every gradient of one rank") {
  CHECK(testing::as_ranks(2, "rank of: routed tokens, cut") == 0);
  for (const char* cut : {" in regions", " along a pipeline"})
    CHECK(testing::as_ranks(4, std::string("rank of: routed tokens") + cut) == 0);
}

}  // namespace
}  // namespace ditto
