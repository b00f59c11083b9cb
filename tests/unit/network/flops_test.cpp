// Claim (numbers): Operations as the layers count them on shapes alone: what the models' papers count by hand.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/network/flops.h"
#include "core/network/networks.h"
#include "tests/support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

Registry& registry() {
  static Registry all(
      std::vector<SearchFolder>{{test::plugin_folder(), "the test"},
                                {test::build_folder() / "tests/fixture_plugins/faulty_model.so", "the test"}});
  return all;
}

constexpr int64_t kClasses = 5, kText = 12, kTextWidth = 20;

struct Counted {
  Counted(const std::string& model, const std::vector<int64_t>& x, bool text)
      : recipe(Recipe::parse("[run]\nname = \"count\"\n[model]\n" + model, "count.toml")),
        components(recipe, registry()) {
    RunningModel::Setting setting{{"model", recipe.model}, {}};
    setting.device = torch::kMeta;
    setting.needs.inputs = {{"x", torch::kFloat, x, ""}, {"t", torch::kFloat, {}, ""}};
    setting.needs.inputs.push_back({"label", torch::kLong, {}, "", kClasses});
    if (text) {
      setting.needs.inputs.push_back({"text", torch::kFloat, {-1, kTextWidth}, ""});
      setting.needs.inputs.push_back({"text_mask", torch::kBool, {-1}, ""});
    }
    setting.needs.out_channels = x.at(0);
    const ShapesAlone no_numbers;
    running = std::make_unique<RunningModel>(components, mesh, components.op_table(), setting);
  }
  double operations(int64_t samples) { return total(FlopCounter(components, *running).forward(samples, kText)); }

  GlooMesh mesh{RankInfo{}, {}, std::chrono::seconds(60)};
  Recipe recipe;
  Components components;
  std::unique_ptr<RunningModel> running;
};

// Multiply-adds, of T tokens and S keys.
double attention(double T, double S, double D, double kv) { return T * (2 * D * D + 2 * D * kv) + 2 * T * S * D; }
double cross(double T, double S, double D, double kv) { return 2 * T * D * D + 2 * S * D * kv + 2 * T * S * D; }
double mlp(double T, double D, double ratio) { return 2 * ratio * T * D * D; }
double time_embed(double D) { return 256 * D + D * D; }
double text_embed(double S, double D) { return S * (kTextWidth + D) * D; }

}  // namespace

TEST_CASE("a DiT's operations are those of its closed form") {
  const double D = 96, T = 16, L = 3;
  Counted dit("plugin = \"dit\"\ndepth = 3\nwidth = 96\nheads = 4\npatch = 2\n", {3, 8, 8}, false);
  const double block = T * (4 + 2 * 4) * D * D + 6 * D * D + 2 * T * T * D;
  const double expected = 2 * (L * block + T * D * 4 * (3 + 3) + 2 * D * D + time_embed(D));
  CHECK(dit.operations(1) == expected);
  CHECK(dit.operations(7) == 7 * expected);
}

TEST_CASE("a DiT's operations with experts are those of its closed form") {
  const double D = 48, T = 16, L = 4, E = 4;
  for (const std::string router : {"token_choice", "expert_choice"}) {
    CAPTURE(router);
    Counted moe(
        "plugin = \"dit_moe\"\ndepth = 4\nwidth = 48\nheads = 4\npatch = 2\nexperts = 4\ntop_k = 2\n"
        "moe_every = 2\nshared_ratio = 2\nrouter = \"" +
            router + "\"\n",
        {3, 8, 8}, false);
    const double experts = T * (E * D + 2 * 2 * 4 * D * D) + mlp(T, D, 2);
    const double sum = T * D * 4 * (3 + 3) + 256 * D + (3 + 6 * L) * D * D + L * attention(T, T, D, D) +
                       L / 2 * (experts + mlp(T, D, 4));
    CHECK(moe.operations(3) == 3 * 2 * sum);
  }
}

TEST_CASE("a text model's operations are those of its closed form") {
  const double D = 64, T = 16, S = kText, L = 2;
  for (const bool single : {false, true}) {
    const double kv = single ? 64 : 32;
    Counted text(single ? "plugin = \"pixart\"\ndepth = 2\nwidth = 64\nheads = 4\npatch = 2\n"
                        : "plugin = \"dit_text\"\ndepth = 2\nwidth = 64\nheads = 4\nkv_heads = 2\npatch = 2\n"
                          "qk_norm = true\n",
                 {3, 8, 8}, true);
    const double blocks = L * (attention(T, T, D, kv) + cross(T, S, D, kv) + mlp(T, D, 4));
    const double ends = T * D * 4 * (3 + 3) + time_embed(D) + (single ? 0 : 2 * D * D) + text_embed(S, D);
    const double modulations = 3 * 2 * D * D * (single ? 1 : L);
    CHECK(text.operations(2) == 2 * 2 * (blocks + ends + modulations));
  }
}

TEST_CASE("a video model's operations are those of its closed form") {
  const double D = 48, F = 4, T = F * 16, S = kText, L = 2;
  Counted video("plugin = \"st_dit\"\ndepth = 2\nwidth = 48\nheads = 4\npatch = 2\nfull = true\n", {3, 4, 8, 8}, true);
  const double blocks = L * (attention(T, T / F, D, D) + attention(T, T, D, D) + attention(T, F, D, D) +
                             cross(T, S, D, D) + mlp(T, D, 4));
  const double ends = T * D * 4 * (3 + 3) + time_embed(D) + 2 * D * D + text_embed(S, D);
  CHECK(video.operations(2) == 2 * 2 * (blocks + ends + 3 * 4 * D * D * L));
}

TEST_CASE("a UNet's blocks cost what their convolutions do, and a text as short as it takes is tried") {
  Counted unet(
      "plugin = \"unet_sd\"\nblock_out_channels = [32, 64]\nlayers_per_block = [1]\nattention_head_dim = [4]\n"
      "down_block_types = [\"CrossAttnDownBlock2D\", \"DownBlock2D\"]\n"
      "up_block_types = [\"UpBlock2D\", \"CrossAttnUpBlock2D\"]\nnorm_num_groups = 8\ntext_tokens = 16\n",
      {4, 8, 8}, true);
  const auto residual = [](double in, double out, double places) {
    const double past = in == out ? 0 : places * in * out;
    return 2 * (9 * places * (in + out) * out + past + 4 * 32 * out);
  };
  const auto costs = FlopCounter(unet.components, *unet.running).of_blocks();
  REQUIRE(costs.size() == 8);  // two down, two in the middle, two times two up
  CHECK(costs[0] > residual(32, 32, 64) + 2 * 9 * 16 * 32 * 32);
  CHECK(costs[1] == residual(32, 64, 16));
  CHECK(costs[3] == residual(64, 64, 16));
  CHECK(costs[4] == residual(128, 64, 16));
  CHECK(costs[5] == residual(96, 64, 16) + 2 * 9 * 64 * 64 * 64);
}

TEST_CASE("a model that asks for numbers is not counted, and is named") {
  Counted faulty("plugin = \"faulty_model\"\nfault = \"asks for numbers\"\n", {3, 4, 4}, false);
  try {
    faulty.operations(1);
    FAIL("it was counted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::plugin);
    CHECK(std::string(error.what()).find("model 'faulty_model'") != std::string::npos);
    CHECK(std::string(error.what()).find("not counted") != std::string::npos);
  }
}

}  // namespace ditto
