// Low-rank terms of layers: what they compute, how they are cut, what they leave frozen; and which layers a recipe's
// patterns give them to.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <nlohmann/json.hpp>

#include "core/checkpoint/tensor_file.h"
#include "core/exchange/peft.h"
#include "core/exchange/peft_targets.h"
#include "core/network/adapter.h"
#include "tests/support/files.h"
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

// A layer whose author has forgotten that its term is to be merged.
struct Keeping final : LinearModule {
  using LinearModule::LinearModule;
  void merge() override {}
};
struct KeepingBlock : Layer {
  KeepingBlock() { make<Keeping>("map", LinearModule::Shape{6, 8, Init::zeros(), Init::zeros()}, Split{}); }
};
struct KeepingModel : Units {
  KeepingModel() { add_block<KeepingBlock>(0); }
};

TEST_CASE("a merge that leaves a layer's term is refused with the layer's name") {
  testing::SmallModel model;
  adapt(model, {kRank, 1, {"*"}, {}, {}});
  merge_adapter(model);
  for (const auto& item : model.named_parameters()) CHECK(!is_of_adapter(item.key()));
  KeepingModel keeping;
  adapt(keeping, {kRank, 1, {"*"}, {}, {}});
  CHECK(test::contains(test::error_of(ErrorKind::plugin, [&] { merge_adapter(keeping); }),
                       "the layer \"blocks.0.map\": keeps its adapter's term"));
}

// A folder of peft's with one layer's term.
void write_adapter(const test::TemporaryFolder& folder, const nlohmann::json& config, const formats::Metadata& notes) {
  write_tensors(folder / "adapter_model.safetensors",
                {{"base_model.model.head.lora_A.weight", torch::ones({2, 16})},
                 {"base_model.model.head.lora_B.weight", torch::ones({3, 2})}},
                notes);
  test::write_text(folder / "adapter_config.json", config.dump());
}

std::string adapter_refusal(nlohmann::json config, const formats::Metadata& notes = {{"format", "pt"}}) {
  const test::TemporaryFolder folder;
  if (auto& targets = config["target_modules"]; targets.is_string())
    targets = targets.get<std::string>() + "|head";
  else
    targets.push_back("head");
  write_adapter(folder, config, notes);
  testing::SmallModel model;
  return test::error_of(ErrorKind::checkpoint, [&] { checkpoint::Peft(model, "", folder.path()); });
}

TEST_CASE(
    "of an adapter's configuration what peft itself takes for plain terms is taken, and all else refused by name") {
  const auto golden = nlohmann::json::parse(test::read_text(DITTO_SOURCE_DIR "/tests/golden/adapters/configs.json"));
  // Plain where they are merged there, and yet no words that are known to be harmless.
  const std::set<std::string> cautious{"use_qalora",          "bias",          "lora_bias",
                                       "fan_in_fan_out",      "loftq_config",  "corda_config",
                                       "lora_ga_config",      "velora_config", "monteclora_config",
                                       "ensure_weight_tying", "something_new", "init_lora_weights"};
  int taken = 0, refused = 0;
  for (const auto& change : golden.at("changes")) {
    auto config = golden.at("saved");
    const auto key = change.at("key").is_null() ? "" : change.at("key").get<std::string>();
    if (!key.empty()) config[key] = change.at("value");
    const auto error = adapter_refusal(config);
    CAPTURE(change.dump());
    CAPTURE(error);
    (error.empty() ? taken : refused) += 1;
    if (error.empty()) {
      CHECK(change.at("peft") == "plain");
    } else {
      CHECK(test::contains(error, "says " + key + " = "));
      if (change.at("peft") == "plain") CHECK(cautious.count(key));
    }
  }
  CHECK(taken >= 25);
  CHECK(refused >= 30);
  for (const char* start : {"gaussian", "eva", "orthogonal", "mica"}) {
    auto config = golden.at("saved");
    config["init_lora_weights"] = start;
    CHECK(adapter_refusal(config).empty());
  }
  for (const auto& [key, value] :
       formats::Metadata{{"ss_network_module", "networks.lora"}, {"lora_adapter_metadata", "{}"}}) {
    const auto error = adapter_refusal(golden.at("saved"), {{"format", "pt"}, {key, value}});
    CHECK_MESSAGE(test::contains(error, key), error);
  }
}

TEST_CASE("terms of layers that an adapter's configuration leaves out are refused, as peft does not read them") {
  const auto golden = nlohmann::json::parse(test::read_text(DITTO_SOURCE_DIR "/tests/golden/adapters/targets.json"));
  CHECK(golden.size() >= 20);
  for (const auto& one : golden) {
    CAPTURE(one.dump());
    CHECK(checkpoint::peft_reads(one.at("config"), one.at("layer"), "here") == one.at("is_meant"));
  }
  for (const char* pattern : {"(", "(?P<name>a)", "(?<=x)y"})
    CHECK(test::contains(test::error_of(ErrorKind::checkpoint,
                                        [&] {
                                          checkpoint::peft_reads({{"target_modules", pattern}}, "a", "here");
                                        }),
                         "a pattern that cannot be read here"));
  CHECK(!checkpoint::peft_reads({{"target_modules", "(a+)+b"}}, std::string(400, 'a'), "here"));  // at once
  auto config =
      nlohmann::json::parse(test::read_text(DITTO_SOURCE_DIR "/tests/golden/adapters/configs.json")).at("saved");
  config["exclude_modules"] = {"head"};
  CHECK(test::contains(adapter_refusal(config), "adapts 'head', which its adapter_config.json leaves out"));
}

TEST_CASE("an adapter in one file, or a file of one, is refused by what it is") {
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& path) {
    return test::error_of(ErrorKind::checkpoint, [&] { checkpoint::refuse_one_file(path); });
  };
  const std::map<std::string, std::string> names{{"lora_unet_blocks_0_qkv.lora_down.weight", "kohya"},
                                                 {"transformer.blocks.0.attn.to_q.lora_A.weight", "diffusers"},
                                                 {"unet.down.attn.processor.to_q_lora.down.weight", "diffusers"},
                                                 {"lora_unet_blocks_0.hada_w1_a", "LyCORIS"},
                                                 {"lora_unet_blocks_0.lokr_w1", "LyCORIS"},
                                                 {"blocks.0.qkv.weight", "is a file"}};
  for (const auto& [name, words] : names) {
    write_tensors(folder / "one.safetensors", {{name, torch::zeros({2, 2})}});
    const auto error = refusal(folder / "one.safetensors");
    CHECK_MESSAGE(test::contains(error, words), error);
    CHECK_MESSAGE(test::contains(error, "adapter_config.json beside adapter_model.safetensors"), error);
  }
  test::write_text(folder / "web.pt", "<!DOCTYPE html>");
  CHECK(test::contains(refusal(folder / "web.pt"), "adapter_config.json"));
  std::filesystem::create_directory(folder / "saved");
  write_tensors(folder / "saved/pytorch_lora_weights.safetensors", {{"unet.a.lora_A.weight", torch::zeros({2, 2})}});
  CHECK(test::contains(refusal(folder / "saved"), "holds pytorch_lora_weights.safetensors, an adapter in one file"));
  const test::TemporaryFolder peft;
  write_adapter(peft, {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 2}}, {});
  CHECK(refusal(peft.path()).empty());
  CHECK(test::contains(refusal(peft / "adapter_config.json"), "name its folder, " + peft.path().string()));
  CHECK(refusal(folder / "nowhere").empty());
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
