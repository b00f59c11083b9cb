// Imagen's two UNets: what they refuse, what a dropped text is, and what they read out of NeMo's files.
//
// Claim (plugins): Both UNets of Imagen refuse sizes, texts and weights that do not fit them with one sentence, and
// read their options out of NeMo's files; cut along tensor, in shards or computed again they learn as on one rank, what
// they drop included.
#include <doctest/doctest.h>

#include <ditto/ditto.h>
#include <ditto/nn/imagen.h>
#include <ditto/testing/checks.h>

#include "tests/support/files.h"
#include "tests/support/golden.h"
#include "tests/support/open_plugin.h"
#include "tests/unit/strategy_run.h"

using ditto::ErrorKind;
using ditto::ForeignShapes;
using ditto::Model;
using ditto::ModelNeeds;
using ditto::OptionValue;
using ditto::test::contains;
using ditto::test::error_of;
using Options = std::map<std::string, OptionValue>;
using List = std::vector<int64_t>;

namespace {

constexpr const char *kRegular = "imagen_unet", *kEfficient = "imagen_efficient_unet";

ModelNeeds needs(const List& x, int64_t text = 64, int64_t places = -1) {
  auto made = ditto::testing::model_needs(x, x[0], 0, text);
  for (auto& input : made.inputs)
    if (input.name.starts_with("text")) input.shape[0] = places;
  made.inputs.push_back({"low", at::kFloat, {x[0], 4, 4}, "a smaller picture"});
  made.inputs.push_back({"low_t", at::kFloat, {}, "the time of its noise"});
  return made;
}

// Of two levels.
Options small(const std::string& model, const Options& more = {}) {
  Options made{{"embed_dim", int64_t{64}},
               {"channel_mult", List{1, 2}},
               {"per_head_channels", int64_t{32}},
               {"token_length", int64_t{6}}};
  if (model == kRegular)
    made.insert({{"num_res_blocks", List{1}}, {"attention_resolutions", List{4}}, {"cond_dim", int64_t{64}}});
  else
    made.insert({{"num_resblocks", List{1, 1}}, {"atnn_enabled_at", List{0, 1}}});
  for (const auto& [key, value] : more) made[key] = value;
  return made;
}

std::shared_ptr<Model> make(const std::string& model, const Options& more = {},
                            const ModelNeeds& of = needs({3, 8, 8})) {
  return ditto::test::make_plugin<Model>("models", model, small(model, more), of);
}

std::string refused(const std::string& model, const Options& more, ErrorKind kind = ErrorKind::config,
                    const ModelNeeds& of = needs({3, 8, 8})) {
  const ditto::ShapesAlone no_numbers;
  return error_of(kind, [&] { make(model, more, of); });
}

// What a file of this model's weights would say; `before`: what all of its names begin with.
ForeignShapes file_of(const Model& model, const std::string& before = ditto::ImagenUNet::kNemo) {
  const auto parameters = model.named_parameters();
  const auto format = model.foreign("nemo");
  ForeignShapes file{"nemo", "unet.pt", {}, {}, {}};
  const auto add = [&](const std::string& name, const List& shape) {
    file.tensors[before + name.substr(std::string(ditto::ImagenUNet::kNemo).size())] = shape;
  };
  for (const auto& tensor : format.tensors)
    add(tensor.theirs.at(0), tensor.shape.empty() ? parameters[tensor.ours].sizes().vec() : tensor.shape);
  for (const auto& [copy, original] : format.copies)
    add(copy, file.tensors.at(before + original.substr(std::string(ditto::ImagenUNet::kNemo).size())));
  return file;
}

Options read(const std::string& model, const ForeignShapes& file, const Options& recipe) {
  ditto::OptionMap given{"model", "test.toml:1:1", {}};
  for (const auto& [key, value] : recipe) given.given[key] = {value, "test.toml:2:1"};
  ditto::OptionReader reader(given);
  ditto::test::open_plugin<Model>("models", model).foreign_needs(reader, file);
  Options found;
  for (const auto& info : reader.declared()) found[info.name] = info.value;
  return found;
}

// What NeMo's files do not say.
Options unsaid(const std::string& model) {
  Options made{{"per_head_channels", int64_t{32}}, {"token_length", int64_t{6}}};
  if (model == kRegular)
    made.insert({{"attention_resolutions", List{4}}});
  else
    made.insert({{"skip_connection_scaling", false}, {"stride", int64_t{2}}});
  return made;
}

ditto::Batch samples(int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const auto drawn = [&](const List& shape) { return torch::randn(shape, generator, torch::kDouble); };
  ditto::Batch in;
  in["x"] = drawn({2, 3, 8, 8}), in["target"] = drawn({2, 3, 8, 8}), in["low"] = drawn({2, 3, 4, 4});
  in["t"] = drawn({2}), in["low_t"] = drawn({2}), in["text"] = drawn({2, 4, 64});
  in["text_mask"] = torch::tensor({1, 1, 1, 1, 1, 1, 0, 0}).view({2, 4}).to(torch::kBool);
  in.ids = {2 * seed, 2 * seed + 1}, in.weights = {1, 1};
  return in;
}

// Every gradient of two micro-batches, in double precision.
void check_as_one(const ditto::Mesh& mesh, const std::string& name, const Options& options,
                  const std::vector<ditto::testing::Named>& strategies) {
  CAPTURE(name);
  const auto model = [&] {
    auto made = make(name, options);
    ditto::testing::fill(*made, torch::kDouble);
    return made;
  };
  const auto alone = ditto::testing::mesh_of_one();
  ditto::testing::StrategyRun whole(alone, model(), samples, torch::kDouble, {}),
      rank(mesh, model(), samples, torch::kDouble, strategies);
  whole.step(2, 1);
  rank.step(2, 1);
  const auto expected = whole.gradients();
  const auto largest = [](const torch::Tensor& x) { return x.numel() > 0 ? x.abs().max().item<double>() : 0; };
  for (const auto& entry : rank.layout.entries) {
    CAPTURE(entry.name);
    // Terms of a bias's gradient nearly cancel in front of a norm: its rounding is that of the layer's weight.
    const auto weight = expected.find(entry.name.substr(0, entry.name.rfind('.')) + ".weight");
    const double scale =
        std::max(largest(expected.at(entry.name)), weight == expected.end() ? 0 : largest(weight->second));
    for (const auto& slice : entry.slices()) {
      const auto there = ditto::testing::rectangle(expected.at(entry.name), slice.global_start, slice.size);
      const auto here = ditto::testing::rectangle(entry.tensor.grad(), slice.local_start, slice.size);
      CHECK(largest(here - there) <= 1e-11 * scale);
    }
  }
}

void check_both(const ditto::Degrees& degrees, const std::vector<ditto::testing::Named>& strategies) {
  const auto mesh = ditto::testing::mesh_of(degrees);
  for (const char* type : {"fused", "stacked"}) {
    const Options common{{"attention_type", std::string(type)}, {"low_res_cond", true}, {"noise_cond_aug", true}};
    auto dropping = common;
    dropping["dropout"] = 0.25;
    check_as_one(mesh, kRegular, dropping, strategies);
    check_as_one(mesh, kEfficient, common, strategies);
  }
}

}  // namespace

TEST_CASE("rank of: Imagen cut along tensor" * doctest::skip()) {
  check_both({{ditto::Axis::tensor, 2}}, {{"tensor"}, {"recompute"}});
}
TEST_CASE("rank of: Imagen in shards" * doctest::skip()) { check_both({{ditto::Axis::shard, 2}}, {{"fsdp"}}); }

TEST_CASE("Imagen's UNets cut along tensor, in shards and computed again learn as on one rank, and drop the same") {
  CHECK(ditto::testing::as_ranks(2, "rank of: Imagen cut along tensor") == 0);
  CHECK(ditto::testing::as_ranks(2, "rank of: Imagen in shards") == 0);
}

TEST_CASE("sizes and texts that do not fit are refused with one sentence") {
  for (const char* model : {kRegular, kEfficient}) {
    CAPTURE(model);
    CHECK(refused(model, {}).empty());
    CHECK(contains(refused(model, {{"embed_dim", int64_t{48}}}), "32 groups do not divide"));
    CHECK(contains(refused(model, {{"per_head_channels", int64_t{48}}}), "does not divide the 128 channels"));
    CHECK(contains(refused(model, {{"per_head_channels", int64_t{-1}}, {"num_attn_heads", int64_t{3}}}),
                   "does not divide the 128 channels"));
    CHECK(contains(refused(model, {{"noise_cond_aug", true}, {"low_res_cond", false}}), "low_res_cond"));
    CHECK(contains(refused(model, {}, ErrorKind::config, needs({3, 8, 8}, 64, 7)), "token_length"));
    CHECK(contains(refused(model, {{"attention_type", std::string("self")}, {"use_null_token", true}}), "null token"));
    CHECK(contains(refused(model, {}, ErrorKind::config, needs({3, 8, 8}, 0)), "takes text"));
  }
  CHECK(contains(refused(kRegular, {{"cond_dim", int64_t{48}}}), "32 groups do not divide"));
  CHECK(contains(refused(kEfficient, {}, ErrorKind::config, needs({3, 8, 8}, 48)), "32 groups do not divide"));
  CHECK(contains(refused(kRegular, {}, ErrorKind::shape, needs({3, 8, 7})), "multiples of 2"));
  CHECK(contains(refused(kRegular, {{"attention_resolutions", List{2}}}), "choose among 8, 4"));
  CHECK(contains(refused(kRegular, {{"num_res_blocks", List{1, 1, 1}}}), "2 levels"));
  CHECK(contains(refused(kRegular, {{"dropout", 1.0}}), "below 1"));
  CHECK(contains(refused(kEfficient, {{"stride", int64_t{4}}}, ErrorKind::shape), "does not undo"));
  CHECK(refused(kEfficient, {{"stride", int64_t{3}}}, ErrorKind::shape).empty());  // 8 places, 3, 8
  CHECK(contains(refused(kEfficient, {{"atnn_enabled_at", List{0, 2}}}), "from 0 to 1"));
  CHECK(contains(refused(kEfficient, {{"num_resblocks", List{1}}}), "each of the 2 levels"));
}

TEST_CASE("a preset's maps attend at the levels of NeMo's, of whichever sides the data's pictures are") {
  const ditto::ShapesAlone no_numbers;
  for (const int64_t side : {64, 256}) {
    const auto model = ditto::test::make_plugin<Model>(
        "models", kRegular, Options{{"preset", std::string("400m_res_256")}}, needs({3, side, side}, 1024));
    int64_t count = 0;
    for (const auto& item : model->named_parameters()) count += item.value().numel();
    CHECK(count == 408350468);
  }
}

TEST_CASE("a text that is longer than the model's is refused, and a dropped one is zeros whose mask stays") {
  const auto model = make(kRegular);
  ditto::Batch in;
  in["x"] = torch::zeros({2, 3, 8, 8});
  in["t"] = torch::zeros({2});
  in["text"] = torch::ones({2, 7, 64});
  in["text_mask"] = torch::ones({2, 7}, torch::kBool);
  CHECK(contains(error_of(ErrorKind::shape, [&] { ditto::test::predict(*model, in, torch::kFloat); }), "token_length"));
  const auto out = model->without_condition(in, torch::tensor({0, 1}).to(torch::kBool));
  CHECK(out.at("text")[0].equal(in.at("text")[0]));
  CHECK_FALSE(out.at("text")[1].any().item<bool>());
  CHECK(out.at("text_mask").equal(in.at("text_mask")));
}

TEST_CASE("options are read out of NeMo's files, of UNets that torch.compile has wrapped too") {
  const ditto::ShapesAlone no_numbers;
  const Options regular{{"num_res_blocks", List{1, 2}}, {"resblock_updown", true},
                        {"low_res_cond", true},         {"noise_cond_aug", true},
                        {"use_null_token", true},       {"learned_sinu_pos_emb_dim", int64_t{6}},
                        {"scale_shift_norm", false},    {"init_conv_kernel_size", int64_t{5}}};
  const Options mean{{"num_res_blocks", List{2}},
                     {"resample_with_conv", false},
                     {"feature_pooling_type", std::string("mean")},
                     {"attention_type", std::string("stacked")},
                     {"learned_sinu_pos_emb_dim", int64_t{0}}};
  const Options efficient{{"num_resblocks", List{2, 1}},
                          {"atnn_enabled_at", List{1, 0}},
                          {"noise_cond_aug", true},
                          {"attention_type", std::string("cross")}};
  const std::vector<std::pair<const char*, Options>> cases{
      {kRegular, regular}, {kRegular, mean}, {kEfficient, efficient}};
  for (const auto& one : cases)
    for (const char* before : {ditto::ImagenUNet::kNemo, ditto::ImagenUNet::kNemoCompiled, "unet."}) {
      const char* const model = one.first;
      const Options& options = one.second;
      CAPTURE(model);
      CAPTURE(before);
      const auto file = file_of(*make(model, options), before);
      const auto recipe = unsaid(model);
      const auto found = read(model, file, recipe);
      auto expected = small(model, options);
      if (options.count("num_res_blocks") && std::get<List>(options.at("num_res_blocks")).size() == 1)
        expected["num_res_blocks"] = List{2, 2};
      for (const auto& [name, value] : expected)
        CHECK_MESSAGE(ditto::to_text(found.at(name)) == ditto::to_text(value), name);
    }
}

TEST_CASE("weights of the other UNet, and a recipe that says something else than the file, are refused") {
  const ditto::ShapesAlone no_numbers;
  const auto regular = file_of(*make(kRegular)), efficient = file_of(*make(kEfficient));
  const Options heads{{"per_head_channels", int64_t{32}}};
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { read(kRegular, efficient, heads); }), "imagen_efficient_unet"));
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { read(kEfficient, regular, heads); }), "\"imagen_unet\""));
  CHECK(contains(error_of(ErrorKind::config,
                          [&] {
                            read(kRegular, regular, {{"cond_dim", int64_t{32}}});
                          }),
                 "cond_dim"));
  auto other = regular;
  other.tensors = {{"a.weight", {3}}};
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { read(kRegular, other, heads); }), "no UNet of NeMo's"));
}

TEST_CASE("what no tensor of NeMo's files tells is to be said: another value is another function of the same shapes") {
  const ditto::ShapesAlone no_numbers;
  for (const char* model : {kRegular, kEfficient}) {
    const auto file = file_of(*make(model));
    const auto of = [&](const Options& recipe) {
      return error_of(ErrorKind::config, [&] { read(model, file, recipe); });
    };
    CHECK(of(unsaid(model)).empty());
    for (const auto& [name, value] : unsaid(model)) {
      auto recipe = unsaid(model);
      recipe.erase(name);
      CHECK_MESSAGE(contains(of(recipe), name + " is not said"), name << ": " << of(recipe));
    }
    auto counted = unsaid(model);
    counted["per_head_channels"] = int64_t{-1};
    CHECK(contains(of(counted), "num_attn_heads is not said"));
  }
}

TEST_CASE("a UNet whose texts nothing attends to has no NeMo file where that maps them for it") {
  const Options self{{"attention_type", std::string("self")}};
  for (const char* model : {kRegular, kEfficient}) {
    CHECK(make(model, self)->foreign_formats().empty());
    auto mean = self;
    mean["feature_pooling_type"] = std::string("mean");
    CHECK(make(model, mean)->foreign_formats() == std::vector<std::string>{"nemo"});
  }
}
