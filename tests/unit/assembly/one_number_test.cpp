// run.numerics = "one": what is refused, how large micro-batches are, and which calls of LibTorch are seen.
#include <thread>

#include <ATen/record_function.h>
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/context.h>

#include "core/assembly/one_number_guard.h"
#include "core/assembly/resume.h"
#include "core/assembly/step_shares.h"
#include "core/config/numerics.h"
#include "core/formats/text/toml.h"
#include "core/mesh/paper_mesh.h"

namespace ditto {
namespace {

using torch::Tensor;

Recipe recipe_of(const std::string& text) { return Recipe::parse("[run]\nnumerics = \"one\"\n" + text, "the test"); }

void check_refused(const std::string& text, const std::string& what) {
  CAPTURE(text);
  try {
    recipe_of(text);
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    CHECK(std::string(error.what()).find("run.numerics") != std::string::npos);
    CHECK(std::string(error.what()).find(what) != std::string::npos);
  }
}

TEST_CASE("one number refuses by name what cannot have it, fast takes it") {
  check_refused("precision = \"fp16\"\n", "run.precision = \"fp16\"");
  check_refused("precision = \"fp64\"\n", "run.precision = \"fp64\"");
  check_refused("device = \"cuda\"\n", "run.device = \"cuda\"");
  check_refused("deterministic = false\n", "run.deterministic = false");
  check_refused("[parallel]\nexpert = 3\n", "parallel.expert = 3");
  check_refused("[parallel]\npipeline = 2\npipeline_conditioning = \"replicated\"\n", "pipeline_conditioning");
  check_refused("[encoder.text]\nplugin = \"t5\"\nprecision = \"fp16\"\n", "encoder.text.precision = \"fp16\"");
  CHECK(is_one_number(recipe_of("precision = \"bf16\"\n[encoder.text]\nplugin = \"t5\"\nprecision = \"fp32\"\n")));
  CHECK(Recipe::parse("[run]\nprecision = \"bf16\"\n[parallel]\ntensor = 2\n", "the test").run.numerics == "fast");
  const auto recipe = recipe_of(
      "[parallel]\npipeline = 2\nshard = 2\nreplicate = 2\nrecompute = \"blocks\"\noffload = \"optimizer\"\n");
  CHECK(is_one_number(recipe));
  CHECK(!shares_tokens(recipe.parallel));
  CHECK(!shares_tokens(recipe_of("[parallel]\ntensor = 2\n").parallel));
  CHECK(!shares_tokens(recipe_of("[parallel]\nsequence = true\n").parallel));
  CHECK(shares_tokens(recipe_of("[parallel]\ntensor = 2\nsequence = true\n").parallel));
  CHECK(shares_tokens(recipe_of("[parallel]\ncontext = 2\n").parallel));
  CHECK(!shares_tokens(recipe_of("[parallel]\nexpert = 4\n").parallel));
  CHECK_THROWS_AS(Recipe::parse("[run]\ntoken_leaf = 8\n", "the test"), Error);
  CHECK(sum_order(recipe) == SumOrder::tree);
  CHECK(kernel_sets(recipe) == std::vector<std::string>{"cpu", "exact"});
  CHECK(kernel_sets(recipe_of("[plugins]\nkernels = [\"exact\", \"cpu\"]\n")) ==
        std::vector<std::string>{"exact", "cpu"});
  CHECK(kernel_sets(recipe_of("[plugins]\nkernels = [\"cpu\"]\n")) == std::vector<std::string>{"cpu", "exact"});
  CHECK(kernel_sets(Recipe::parse("[plugins]\nkernels = [\"cpu\"]\n", "the test")) == std::vector<std::string>{"cpu"});
}

TEST_CASE("micro-batches of one number are the next lower power of two, which is said where it changes them") {
  const auto made = [](int64_t batch, int64_t micro_batch, int ranks, const char* numerics) {
    RunOptions run;
    run.batch = batch;
    run.micro_batch = micro_batch;
    run.numerics = numerics;
    const PaperMesh mesh(complete_degrees({}, ranks), {}, PaperMesh::Peers::alike);
    const bool changes = !micro_batch_report(run, mesh).empty();
    const StepShares shares(run, {}, mesh, {});
    run.numerics = "fast";
    CHECK(micro_batch_report(run, mesh).empty());
    CHECK(changes == (shares.micro_batch() != StepShares(run, {}, mesh, {}).micro_batch()));
    return shares.micro_batch();
  };
  CHECK(made(128, 20, 1, "one") == 16);
  CHECK(made(128, 20, 1, "fast") == 20);
  CHECK(made(128, 0, 1, "one") == 128);
  CHECK(made(100, 0, 1, "one") == 64);
  CHECK(made(100, 0, 3, "one") == 32);
  CHECK(made(100, 0, 3, "fast") == 34);
  CHECK(made(5, 1, 2, "one") == 1);
  CHECK(made(5, 100, 2, "one") == 4);
}

TEST_CASE("samples of several sizes are micro-batches of one, in their order, whatever the plan") {
  RunOptions run;
  run.batch = 6;
  run.numerics = "one";
  BatchOptions packs;
  packs.plan = "packs";
  packs.tokens = 100;
  const BatchPlanner::Sizes sizes{[](int64_t place) {
                                    return SampleSize{place == 4 ? 10 : 2, 4};
                                  },
                                  [](const SampleSize& size) { return size[0] * size[1]; }};
  const PaperMesh mesh(complete_degrees({}, 2), {}, PaperMesh::Peers::alike);
  const auto plan = [&] { return StepShares(run, packs, mesh, sizes, Alone::sizes_differ).step(0, 6, Phase::train); };
  const auto step = plan();
  REQUIRE(step.micro_batches.size() == 6);
  for (int64_t i = 0; i < 6; ++i) CHECK(step.micro_batches[static_cast<size_t>(i)] == Places(6 + i, 1));
  const auto said = micro_batch_report(run, mesh, Alone::sizes_differ, packs.plan);
  CHECK(said.find("1 sample where packs were asked for") != std::string::npos);
  CHECK(!micro_batch_report(run, mesh, Alone::sizes_differ).empty());
  run.micro_batch = 1;
  CHECK(micro_batch_report(run, mesh, Alone::sizes_differ).empty());
  packs.tokens = 30;  // the one at place 4 has 40
  CHECK_NOTHROW(plan());
  const StepShares shares(run, packs, mesh, sizes, Alone::sizes_differ);
  CHECK_THROWS_AS(shares.step(0, 0, Phase::train), Error);
}

TEST_CASE("a resume without the key was fast; with one number on both sides nothing changes bits") {
  const auto lines = [](const std::string& before, const std::string& after) {
    const auto recipe = Recipe::parse(after, "b");
    Registry registry;
    return compare_recipes(formats::parse_toml(before, "a"), formats::parse_toml(after, "b"),
                           effects_of(recipe, before, registry), {});
  };
  CHECK(lines("[run]\nseed = 1\n", "[run]\nseed = 1\nnumerics = \"fast\"\n").empty());
  const auto to_one = lines("[run]\nseed = 1\n", "[run]\nseed = 1\nnumerics = \"one\"\n");
  REQUIRE(to_one.size() == 1);
  CHECK(to_one[0] == "run.numerics: \"fast\" -> \"one\" (equal within rounding from here on, not bit for bit)");
  const auto threads = lines("[run]\nthreads = 1\nnumerics = \"one\"\n", "[run]\nthreads = 2\nnumerics = \"one\"\n");
  REQUIRE(threads.size() == 1);
  CHECK(threads[0] == "run.threads: 1 -> 2 (bit for bit)");
  const auto rounded =
      lines("[run]\nprecision = \"fp32\"\nnumerics = \"one\"\n", "[run]\nprecision = \"bf16\"\nnumerics = \"one\"\n");
  REQUIRE(rounded.size() == 1);
  CHECK(rounded[0] == "run.precision: \"fp32\" -> \"bf16\" (equal within rounding from here on, not bit for bit)");
}

// What the guard says of `body`; empty: nothing.
std::string said_of(const std::function<void()>& body) {
  const OneNumberGuard guard;
  body();
  try {
    guard.check();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    return error.what();
  }
  return {};
}

TEST_CASE("calls whose sums are LibTorch's are named, in forward and in backward") {
  const auto x = torch::rand({6, 5}), w = torch::rand({5, 5});
  const std::vector<std::pair<const char*, std::function<Tensor()>>> calls{
      {"aten::softmax", [&] { return torch::softmax(x, 1); }},
      {"aten::mm", [&] { return torch::mm(x, w); }},
      {"aten::linear", [&] { return torch::linear(x, w); }},
      {"aten::sum", [&] { return x.sum(); }},
      {"aten::sum", [&] { return x.sum(0); }},
      {"aten::mean", [&] { return x.mean(1); }},
      {"aten::gelu", [&] { return torch::gelu(x); }},
      {"aten::exp", [&] { return torch::exp(x); }},
      {"aten::lerp", [&] { return torch::lerp(x, x, 0.5); }},
      {"aten::add", [&] { return torch::add(x, x, 0.5); }},
      {"aten::pow", [&] { return torch::pow(x, 3); }},
      {"aten::addcmul", [&] { return torch::addcmul(x, x, x); }},
      {"aten::scatter",
       [&] {
         return x.scatter(1, torch::zeros({6, 2}, torch::kLong), x);
       }},
      {"aten::floor_divide", [&] { return torch::floor_divide(x, w[0]); }},
      {"aten::bincount", [&] { return torch::bincount(torch::zeros({5}, torch::kLong), w[0]); }},
      {"aten::layer_norm", [&] { return torch::layer_norm(x, {5}); }},
      {"aten::randn_like", [&] { return torch::randn_like(x); }}};
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    const auto said = said_of([&, &call = call] { call(); });
    CHECK(said.find("run.numerics") != std::string::npos);
    CHECK(said.find(std::string("a call of ") + name + ",") != std::string::npos);
  }
  // A parameter that is broadcast: its gradient is a sum.
  const auto row = torch::rand({5}).requires_grad_();
  const auto said = said_of([&] {
    const auto y = x * row;
    y.backward(torch::ones_like(y));
  });
  CAPTURE(said);
  CHECK(said.find("aten::sum in backward (MulBackward0)") != std::string::npos);
}

TEST_CASE("a guard hears its own thread, one after another, and says the first call alone with the unit it is in") {
  const auto x = torch::rand({6, 5});
  std::string other;
  const auto said = said_of([&] {
    std::thread([&] {
      x.sum();                           // nobody's
      const OneNumberGuard::Pause none;  // nor is this one
      other = said_of([&] { torch::exp(x); });
    }).join();
    {
      at::RecordFunction unit(at::RecordScope::USER_SCOPE);
      unit.before(std::string_view("block 3 of model 'm'"));
      x.mean();
    }
    x.sum();
  });
  CHECK(said.find("a call of aten::mean in block 3 of model 'm',") != std::string::npos);
  CHECK(other.find("a call of aten::exp,") != std::string::npos);
  CHECK(said_of([&] { x.neg(); }) == "");
}

TEST_CASE("what is one operation a number, or moves, or has no numbers, is not named") {
  const auto x = torch::rand({6, 5}), row = torch::rand({5});
  auto leaf = torch::rand({6, 5}).requires_grad_();
  CHECK(said_of([&] {
          auto y = (leaf * row + x - 0.5) / 3;
          y = torch::where(y > 0, y.square().sqrt(), -y).clamp(0, 2).pow(2);
          y = torch::cat({y, x}, 0).transpose(0, 1).contiguous().view({-1}).slice(0, 1, 20);
          y = torch::maximum(y, torch::zeros_like(y)).to(torch::kDouble).to(torch::kFloat);
          y.backward(torch::ones_like(y));
          leaf.mutable_grad().add_(x);
          torch::NoGradGuard no_grad;
          x[0][0].sum();
          x.narrow(0, 0, 1).sum(0);
          torch::arange(10).sum();
          x.gt(0.5).sum();
          torch::zeros({0, 5}).sum(0);
          torch::mm(torch::empty({3, 3}, torch::kMeta), torch::empty({3, 3}, torch::kMeta));
          x.index_select(0, torch::tensor({1, 1}));
          x.scatter(1, torch::zeros({6, 2}, torch::kLong), 0.5);
          torch::bincount(torch::zeros({5}, torch::kLong));
          const OneNumberGuard::Pause unread;
          x.sum();
        }) == "");
  torch::mm(x, x.t());  // nobody looks any more
}

TEST_CASE("dropout is single operations, and a sample drops the same in any batch, forward and backward") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  ctx.token_leaf = 32;
  const auto x = torch::rand({4, 6, 5}), grad = torch::rand({4, 6, 5});
  const auto drop = [&](int64_t first, int64_t count) {
    Stream stream;
    stream.grid = {1, 2, 3};
    stream.x_BTD = x.narrow(0, first, count).clone().requires_grad_();
    for (int64_t i = 0; i < count; ++i) stream.ids.push_back(100 + first + i);
    const auto y = ctx.dropout(stream.x_BTD, 0.3, stream, "here");
    y.backward(grad.narrow(0, first, count));
    return torch::stack({y.detach(), stream.x_BTD.grad()}, 1);
  };
  Tensor whole;
  CHECK(said_of([&] { whole = drop(0, 4); }) == "");
  CHECK(whole.eq(0).any().item<bool>());
  CHECK(torch::cat({drop(0, 1), drop(1, 3)}).equal(whole));
}

}  // namespace
}  // namespace ditto
