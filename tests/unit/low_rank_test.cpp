// Low-rank terms of layers: what they compute, how they are cut, what they leave frozen; and which layers a recipe's
// patterns give them to.
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "core/network/adapter.h"
#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using torch::Tensor;

constexpr int64_t kRank = 2;

// A linear layer alone, in double precision, no number of which is zero.
struct Alone {
  explicit Alone(Split split = {}) : layer(LinearModule::Shape{6, 8, Init::zeros(), Init::zeros()}, std::move(split)) {
    layer.adapt({kRank, 3});
    layer.to(torch::kDouble);
    torch::NoGradGuard no_grad;
    int64_t seed = 0;
    for (auto& leaf : layer.parameters())
      leaf.copy_(
          torch::randn(leaf.sizes(), at::detail::createCPUGenerator(static_cast<uint64_t>(++seed)), torch::kDouble));
  }
  Tensor at(const std::string& name) { return layer.named_parameters()[name].detach(); }
  LinearModule layer;
  std::shared_ptr<Context> ctx = testing::small_context(torch::kDouble);
};

double largest(const Tensor& x) { return x.abs().max().item<double>(); }

TEST_CASE("a term of low rank is added to a layer's outputs, and is none at first") {
  Alone one;
  const auto x = torch::randn({2, 5, 6}, torch::kDouble);
  const auto expected =
      torch::linear(x, one.at("weight"), one.at("bias")) +
      3.0 / kRank * torch::matmul(torch::matmul(x, one.at("lora_A.weight").t()), one.at("lora_B.weight").t());
  CHECK(largest(one.layer.forward(x, *one.ctx) - expected) < 1e-13);
  CHECK(largest(torch::linear(x, one.layer.whole_weight(*one.ctx), one.at("bias")) - expected) < 1e-13);
  LinearModule fresh({6, 8, Init::zeros(), Init::zeros()}, {});
  REQUIRE(fresh.adapt({kRank, 3}));
  CHECK(fresh.term->b.init().kind == Init::Kind::zeros);
  CHECK(fresh.term->a.init().kind == Init::Kind::uniform);
  CHECK(fresh.term->a.init().scale == doctest::Approx(1 / std::sqrt(6.0)));
}

TEST_CASE("a term's operations are those of its two products, beside the layer's own") {
  Alone one;
  std::map<std::string, double> with, without;
  const auto x = torch::randn({2, 5, 6}, torch::kDouble);
  one.ctx->flops = &with;
  one.layer.forward(x, *one.ctx);
  one.layer.term.reset();
  one.ctx->flops = &without;
  one.layer.forward(x, *one.ctx);
  CHECK(without == std::map<std::string, double>{{"linear", 2.0 * 10 * 6 * 8}});
  CHECK(with.at("linear") - without.at("linear") == 2.0 * 10 * kRank * (6 + 8));
}

TEST_CASE("a merged layer computes the same, with the parameters it had") {
  Alone one;
  const auto x = torch::randn({5, 6}, torch::kDouble);
  const auto before = one.layer.forward(x, *one.ctx).detach();
  one.layer.merge();
  CHECK(largest(one.layer.forward(x, *one.ctx) - before) < 1e-13);
  CHECK(one.layer.named_parameters().keys() == std::vector<std::string>{"weight", "bias"});
}

TEST_CASE("the second map is cut with outputs, the first with inputs") {
  testing::SmallModel model;
  adapt(model, {kRank, 1, {"*"}, {}, {}});
  const auto layout = Layout::of(model);
  const auto declared = [&](const std::string& name) { return layout.at(name).declared(Axis::tensor); };
  REQUIRE(declared("blocks.1.qkv.lora_B.weight"));
  CHECK(declared("blocks.1.qkv.lora_B.weight")->parts == std::vector<int64_t>{16, 16, 16});
  CHECK(declared("blocks.1.qkv.lora_B.weight")->unit == 4);
  CHECK(!declared("blocks.1.qkv.lora_A.weight"));
  REQUIRE(declared("blocks.1.out.lora_A.weight"));
  CHECK(declared("blocks.1.out.lora_A.weight")->dim == 1);
  CHECK(!declared("blocks.1.out.lora_B.weight"));
  CHECK(declared("blocks.1.out.weight")->dim == 1);
  CHECK(!declared("head.lora_B.weight"));
  const auto& entry = layout.at("blocks.1.qkv.lora_B.weight");
  CHECK(entry.layer_name() == "blocks.1.qkv");
  CHECK(entry.own == "lora_B.weight");
  CHECK(entry.unit == Unit{Unit::Kind::block, 1});
}

std::string refusal(std::vector<std::string> layers) {
  testing::SmallModel model;
  try {
    adapt(model, {kRank, 1, std::move(layers), {}, {}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("patterns choose layers, and one that matches none is answered with the nearest") {
  testing::SmallModel model;
  adapt(model, {kRank, 1, {"blocks.*.qkv", "head"}, {}, {}});
  std::vector<std::string> adapted;
  for (const auto& item : model.named_parameters())
    if (is_of_adapter(item.key())) adapted.push_back(item.key());
  CHECK(adapted == std::vector<std::string>{"blocks.0.qkv.lora_A.weight", "blocks.0.qkv.lora_B.weight",
                                            "blocks.1.qkv.lora_A.weight", "blocks.1.qkv.lora_B.weight",
                                            "head.lora_A.weight", "head.lora_B.weight"});
  const auto text = refusal({"blocks.*.qkv", "blocks.*.qvk"});
  CAPTURE(text);
  CHECK(text.find("\"blocks.*.qvk\" matches no layer") != std::string::npos);
  CHECK(text.find("the nearest name is \"blocks.*.qkv\"") != std::string::npos);
  CHECK(refusal({}).find("names no layer") != std::string::npos);
  CHECK(refusal({"*"}).empty());
}

const testing::FullOptions kAdapted{.is_adapted = true};

// Gradients against one rank; and frozen numbers, after what is learned has been changed, are what they were.
void check_adapted(const Mesh& mesh, const testing::FullOptions& options,
                   const std::vector<testing::Named>& strategies) {
  testing::check_full(mesh, options, strategies, 3);
  torch::NoGradGuard no_grad;
  testing::FullRun run(mesh, options, torch::kDouble, strategies);
  std::map<std::string, Tensor> before;
  for (const auto& entry : run.layout.entries)
    if (!entry.trains) before[entry.name] = entry.tensor.detach().clone();
  CHECK(!before.empty());
  for (int64_t step = 1; step <= 3; ++step) {
    {
      torch::AutoGradMode with_grad(true);
      run.step(2, step);
    }
    for (auto& entry : run.layout.entries)
      if (entry.trains) entry.tensor.detach().sub_(1e-3 * entry.tensor.grad());
    run.parameters_changed();
  }
  for (const auto& entry : run.layout.entries) {
    CAPTURE(entry.name);
    CHECK(entry.trains == is_of_adapter(entry.name));
    if (!entry.trains) CHECK(torch::equal(entry.tensor, before.at(entry.name)));
  }
}

TEST_CASE("rank of: adapted layers under fsdp" * doctest::skip()) {
  check_adapted(testing::mesh_of({{Axis::shard, 2}}), kAdapted, {{"fsdp"}});
}
TEST_CASE("rank of: adapted layers under zero2" * doctest::skip()) {
  check_adapted(testing::mesh_of({{Axis::shard, 2}}), kAdapted, {{"zero2"}});
}
TEST_CASE("rank of: adapted layers under tensor" * doctest::skip()) {
  check_adapted(testing::mesh_of({{Axis::tensor, 2}}), kAdapted, {{"tensor"}});
}
TEST_CASE("rank of: adapted layers under sequence regions" * doctest::skip()) {
  check_adapted(testing::mesh_of({{Axis::tensor, 2}}), kAdapted, {{"tensor", {{"sequence", true}}}, {"recompute"}});
}
TEST_CASE("rank of: adapted layers under fastseq" * doctest::skip()) {
  check_adapted(testing::mesh_of({{Axis::context, 2}}), kAdapted, {{"fastseq"}});
}

TEST_CASE("adapted layers have the gradients of one rank, and frozen numbers stay, where weights are sharded") {
  CHECK(testing::as_ranks(2, "rank of: adapted layers under fsdp") == 0);
  CHECK(testing::as_ranks(2, "rank of: adapted layers under zero2") == 0);
}
TEST_CASE("and where layers are cut") {
  CHECK(testing::as_ranks(2, "rank of: adapted layers under tensor") == 0);
  CHECK(testing::as_ranks(2, "rank of: adapted layers under sequence regions") == 0);
}
TEST_CASE("and where an attention unit's layers are borrowed") {
  CHECK(testing::as_ranks(2, "rank of: adapted layers under fastseq") == 0);
}

}  // namespace
}  // namespace ditto
