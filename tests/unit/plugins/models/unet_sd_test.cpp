// unet_sd: what it refuses, each with a sentence, and which maps its blocks leave and take.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <set>

#include <ditto/ditto.h>
#include <ditto/exchange/foreign.h>
#include <ditto/testing/checks.h>

#include "tests/support/files.h"
#include "tests/support/golden.h"
#include "tests/support/open_plugin.h"

using ditto::ErrorKind;
using ditto::Model;
using ditto::ModelNeeds;
using ditto::OptionValue;
using ditto::test::error_of;

namespace {

using Values = std::map<std::string, OptionValue>;
using Numbers = std::vector<int64_t>;
using Names = std::vector<std::string>;

Values small(const Values& more = {}) {
  Values values{{"block_out_channels", Numbers{8, 16}},
                {"down_block_types", Names{"CrossAttnDownBlock2D", "DownBlock2D"}},
                {"up_block_types", Names{"UpBlock2D", "CrossAttnUpBlock2D"}},
                {"layers_per_block", Numbers{1}},
                {"attention_head_dim", Numbers{4}},
                {"norm_num_groups", int64_t{4}},
                {"text_tokens", int64_t{5}}};
  for (const auto& [key, value] : more) values[key] = value;
  return values;
}

ModelNeeds needs(const Numbers& x = {4, 8, 8}, int64_t classes = 0) {
  return ditto::testing::model_needs(x, 4, classes, 6);
}

std::shared_ptr<Model> made(const Values& values, const ModelNeeds& of = needs()) {
  return ditto::test::make_plugin<Model>("models", "unet_sd", values, of);
}

// What a file of this model's weights would say in the format ldm.
ditto::ForeignShapes ldm_file(const Values& values, const ModelNeeds& of) {
  const auto model = made(values, of);
  const auto parameters = model->named_parameters();
  ditto::ForeignShapes file{"ldm", "unet.safetensors", {}, {}, {}};
  for (const auto& tensor : model->foreign("ldm").tensors) {
    auto shape = tensor.shape.empty() ? parameters[tensor.ours].sizes().vec() : tensor.shape;
    if (tensor.theirs.size() > 1) shape[0] /= std::ssize(tensor.theirs);  // of attentions: as many rows of each
    for (const auto& name : tensor.theirs) file.tensors[name] = shape;
  }
  return file;
}

// What a recipe has to say beside it; empty: nothing.
std::string asked(const ditto::ForeignShapes& file, const Values& recipe) {
  ditto::OptionMap given{"model", "test.toml:1:1", {}};
  for (const auto& [key, value] : recipe) given.given[key] = {value, "test.toml:2:1"};
  ditto::OptionReader reader(given);
  try {
    ditto::test::open_plugin<Model>("models", "unet_sd").foreign_needs(reader, file);
  } catch (const ditto::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a file in names of ldm does not say how many groups norms have, though 32 divide all channels") {
  const auto file =
      ldm_file(small({{"block_out_channels", Numbers{32, 64}}, {"norm_num_groups", int64_t{16}}}), needs());
  const Values heads{{"attention_head_dim", Numbers{4}}};
  CHECK(asked(file, heads).find("norm_num_groups") != std::string::npos);
  CHECK(asked(file, {{"attention_head_dim", Numbers{4}}, {"norm_num_groups", int64_t{16}}}).empty());
}

TEST_CASE("nor whether a text as wide as the channels is all that places see") {
  const Values said{{"attention_head_dim", Numbers{4}}, {"norm_num_groups", int64_t{4}}};
  auto all = said;
  for (const int64_t only : {0, 1}) {
    all["only_cross_attention"] = Numbers{only};
    const Values one = small({{"only_cross_attention", Numbers{only}}});
    const auto as_wide = ldm_file(one, ditto::testing::model_needs({4, 8, 8}, 4, 0, 8));
    CHECK(asked(as_wide, said).find("only_cross_attention") != std::string::npos);
    CHECK(asked(as_wide, all).empty());
    CHECK(asked(ldm_file(one, needs()), said).empty());
  }
}

TEST_CASE("unet_sd refuses what no UNet is, each with one sentence") {
  const auto said = [](ErrorKind kind, const std::string& words, const Values& more, const ModelNeeds& of = needs()) {
    const auto error = error_of(kind, [&] { made(small(more), of); });
    CHECK_MESSAGE(error.find(words) != std::string::npos, error);
  };
  const auto config = ErrorKind::config;
  said(config, "multiples of norm_num_groups = 32", {{"norm_num_groups", int64_t{32}}});
  said(config, "multiples of norm_num_groups = 4", {{"block_out_channels", Numbers{8, 18}}});
  said(config, "which they do not divide", {{"attention_head_dim", Numbers{3}}});
  said(config, "one for each of the 2", {{"down_block_types", Names{"DownBlock2D"}}});
  said(config, "SimpleCrossAttnUpBlock2D", {{"up_block_types", Names{"UpBlock2D", "SimpleCrossAttnUpBlock2D"}}});
  said(config, "layers_per_block", {{"layers_per_block", Numbers{1, 2, 3}}});
  said(config, "only_cross_attention", {{"only_cross_attention", Numbers{2}}});
  said(config, "freq_shift", {{"freq_shift", int64_t{4}}});
  said(config, "act_fn", {{"act_fn", std::string("gelu")}});
  said(config, "say how many numbers a label has", {{"class_embed_type", std::string("projection")}});
  said(config, "takes a label", {{"class_embed_type", std::string("timestep")}});
  said(config, "a table of 3 classes", {{"num_class_embeds", int64_t{3}}}, needs({4, 8, 8}, 10));
  said(config, "takes a pooled text", {{"addition_embed_type", std::string("text_time")}});
  said(config, "is of addition_embed_type", {{"pixels", int64_t{16}}});
  said(config, "takes text", {}, ditto::testing::model_needs({4, 8, 8}, 4));
  said(ErrorKind::shape, "multiples of 2", {}, needs({4, 8, 7}));
  said(ErrorKind::shape, "takes pictures", {}, needs({4, 2, 8, 8}));
}

TEST_CASE("unet_sd refuses texts that are longer than those it is trained on, and pictures by their own sides") {
  const auto model = made(small(), needs({4, ditto::kOwnSide, ditto::kOwnSide}));
  const auto batch = [](int64_t side, int64_t tokens) {
    ditto::Batch in;
    in["x"] = torch::zeros({1, 4, side, 8}, torch::kDouble);
    in["t"] = torch::zeros({1});
    in["text"] = torch::zeros({1, tokens, 6}, torch::kDouble);
    in.ids = {0};
    return in;
  };
  model->to(torch::kDouble);
  const auto run = [&](int64_t side, int64_t tokens) {
    return error_of(ErrorKind::shape, [&] { ditto::test::predict(*model, batch(side, tokens), torch::kDouble); });
  };
  CHECK(run(8, 6).find("model.text_tokens = 5") != std::string::npos);
  CHECK(run(7, 3).find("multiples of 2") != std::string::npos);
  CHECK(ditto::test::predict(*model, batch(8, 3), torch::kDouble).prediction.sizes().vec() == Numbers{1, 4, 8, 8});
}

TEST_CASE("every map that unet_sd leaves is taken once, and the last block leaves none") {
  const auto model = made(small({{"layers_per_block", Numbers{2, 1}}}));
  model->to(torch::kDouble);
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(1));
  ctx.compute = torch::kDouble;
  ditto::Batch in;
  in["x"] = torch::ones({1, 4, 8, 8}, torch::kDouble);
  in["t"] = torch::ones({1});
  in["text"] = torch::ones({1, 3, 6}, torch::kDouble);
  in.ids = {0};
  auto stream = model->tokens(in, ctx);
  stream.condition = model->condition(in, ctx);
  std::vector<size_t> live;  // maps beside the one that goes on
  for (int64_t i = 0; i < model->depth(); ++i) {
    stream = model->run_block(i, std::move(stream), ctx);
    live.push_back(stream.extra.size() - 1);
  }
  // Before them one; on the way down 1, 2 (one of them halved), 1; in the middle none; up again.
  CHECK(live == std::vector<size_t>{2, 4, 5, 5, 5, 4, 3, 2, 1, 0});
  CHECK(stream.extra.begin()->first == "map");
}
