// What `dit` reads out of another project's file: its sizes and what its options are, or why that cannot be.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/model.h>
#include <ditto/scheduler.h>

#include "support/files.h"
#include "support/open_plugin.h"

using ditto::ErrorKind;
using ditto::ForeignConfig;
using ditto::ForeignShapes;
using ditto::Model;
using ditto::ModelNeeds;
using namespace ditto::test;
using Options = std::map<std::string, ditto::OptionValue>;

namespace {

ModelNeeds needs(std::vector<int64_t> x, int64_t out_channels, int64_t classes) {
  ModelNeeds made{{{"x", torch::kFloat, std::move(x), ""}, {"t", torch::kFloat, {}, ""}}, out_channels};
  if (classes > 0) made.inputs.push_back({"label", torch::kLong, {}, "", classes});
  return made;
}
const ModelNeeds kSpec = needs({3, 8, 8}, 6, 10);
const Options kSizes{{"depth", int64_t{2}},
                     {"width", int64_t{32}},
                     {"heads", int64_t{4}},
                     {"patch", int64_t{2}},
                     {"mlp_ratio", int64_t{4}}};

Options with(Options options, const Options& more) {
  for (const auto& [key, value] : more) options[key] = value;
  return options;
}

// What a file of this model's weights would say.
ForeignShapes file_of(const std::string& format, const ModelNeeds& spec = kSpec, const Options& more = {}) {
  const std::string convention = format == "diffusers" ? "diffusers" : "facebook";
  const auto model = make_plugin<Model>("models", "dit", with(with(kSizes, {{"convention", convention}}), more), spec);
  const auto parameters = model->named_parameters();
  const auto names = model->foreign(format);
  ForeignShapes file{format, "weights.safetensors", {}, {}, {}};
  for (const auto& tensor : names.tensors) {
    auto shape = parameters[tensor.ours].sizes().vec();
    shape[0] /= static_cast<int64_t>(tensor.theirs.size());
    for (const auto& name : tensor.theirs) file.tensors[name] = tensor.shape.empty() ? shape : tensor.shape;
  }
  for (const auto& [copy, of] : names.copies) file.tensors[copy] = file.tensors.at(of);
  for (const auto& [name, value] : names.constants) file.tensors[name] = value.sizes().vec();
  file.config = names.config;
  if (!file.config.empty()) file.config_file = "config.json";
  return file;
}

struct Read {
  ModelNeeds needs;
  Options options;
};
Read read(const ForeignShapes& file, const Options& recipe = {}) {
  ditto::OptionMap given{"model", "test.toml:1:1", {}};
  for (const auto& [key, value] : recipe) given.given[key] = {value, "test.toml:2:1"};
  ditto::OptionReader reader(given);
  Read result{open_plugin<Model>("models", "dit").foreign_needs(reader, file), {}};
  for (const auto& info : reader.declared()) result.options[info.name] = info.value;
  return result;
}

void check_needs(const ModelNeeds& found, const ModelNeeds& expected) {
  CHECK(found.shape("x") == expected.shape("x"));
  CHECK(found.out_channels == expected.out_channels);
  CHECK(found.values("label") == expected.values("label"));
  CHECK(found.inputs.size() == expected.inputs.size());
}

std::string refusal(ErrorKind kind, const ForeignShapes& file, const Options& recipe = {}) {
  return error_of(kind, [&] { read(file, recipe); });
}

}  // namespace

TEST_CASE("a diffusers file and its config.json say all of a model") {
  const auto found = read(file_of("diffusers"));
  check_needs(found.needs, kSpec);
  for (const auto& [key, value] : with(kSizes, {{"convention", "diffusers"}})) CHECK((found.options.at(key) == value));
}

TEST_CASE("a facebook file says all but its heads, and of the paper's sizes those too") {
  const auto found = read(file_of("facebook-dit"), {{"heads", int64_t{4}}});
  check_needs(found.needs, kSpec);
  for (const auto& [key, value] : with(kSizes, {{"convention", "facebook"}})) CHECK((found.options.at(key) == value));
  CHECK(contains(refusal(ErrorKind::config, file_of("facebook-dit")), "model.heads is not said"));

  const auto none = needs({4, 16, 16}, 4, 0);
  const auto small =
      read(file_of("facebook-dit", none,
                   {{"preset", "S/2"}, {"depth", int64_t{12}}, {"width", int64_t{384}}, {"heads", int64_t{6}}}));
  check_needs(small.needs, none);
  CHECK((small.options.at("heads") == ditto::OptionValue(int64_t{6})));
}

TEST_CASE("a recipe that says otherwise than the file is refused with both") {
  const auto theirs = file_of("diffusers");
  const auto differ = [&](const Options& recipe, const std::string& what) {
    CHECK(contains(refusal(ErrorKind::config, theirs, recipe), what));
  };
  const std::string of = ", and of the weights in weights.safetensors (format diffusers) it is ";
  differ({{"depth", int64_t{3}}}, "model.depth is 3" + of + "2");
  differ({{"width", int64_t{64}}}, "model.width is 64" + of + "32");
  differ({{"heads", int64_t{8}}}, "model.heads is 8" + of + "4");
  differ({{"patch", int64_t{4}}}, "model.patch is 4" + of + "2");
  differ({{"mlp_ratio", int64_t{2}}}, "model.mlp_ratio is 2" + of + "4");
  differ({{"convention", "facebook"}}, "model.convention is \"facebook\"" + of + "\"diffusers\"");
  differ({{"preset", "S/2"}}, "model.depth is 12" + of + "2");  // also by a preset that is the default
  check_needs(read(theirs, {{"depth", int64_t{2}}, {"heads", int64_t{4}}}).needs, kSpec);
  CHECK(contains(
      refusal(ErrorKind::config, file_of("facebook-dit"), {{"convention", "diffusers"}, {"heads", int64_t{4}}}),
      "model.convention is \"diffusers\", and of the weights in weights.safetensors (format facebook-dit) it "
      "is \"facebook\""));
}

TEST_CASE("a file and a config.json that no DiT has are refused by name") {
  auto file = file_of("diffusers");
  file.config_file.clear();
  CHECK(contains(refusal(ErrorKind::checkpoint, file),
                 "no config.json beside it, which alone says \"num_attention_heads\""));
  file = file_of("diffusers");
  file.config.erase("sample_size");
  CHECK(contains(refusal(ErrorKind::checkpoint, file), "config.json: has no \"sample_size\""));
  const auto with_config = [&](const std::string& key, const ditto::OptionValue& value) {
    auto changed = file_of("diffusers");
    changed.config[key] = value;
    return refusal(ErrorKind::checkpoint, changed);
  };
  CHECK(
      contains(with_config("num_layers", int64_t{3}), "\"num_layers\" is 3, and the model that it would become has 2"));
  CHECK(contains(with_config("activation_fn", "geglu"), "has \"gelu-approximate\""));
  CHECK(contains(with_config("norm_eps", 1e-6), "\"norm_eps\" is 1e-06"));
  CHECK(contains(with_config("sample_size", "8"), "expected an integer"));
  CHECK(contains(with_config("num_attention_heads", int64_t{0}), "expected 1 to"));
  CHECK(contains(with_config("num_attention_heads", int64_t{5}), "does not divide tokens of 32"));
  auto old = file_of("diffusers");  // as facebook/DiT-XL-2-256 has it
  old.config["_class_name"] = "Transformer2DModel";
  check_needs(read(old).needs, kSpec);

  file = file_of("facebook-dit");
  file.tensors["pos_embed"] = {1, 15, 32};
  CHECK(contains(refusal(ErrorKind::checkpoint, file, {{"heads", int64_t{4}}}),
                 "tensor 'pos_embed' is not of the tokens of a square picture"));
  file = file_of("facebook-dit");
  file.tensors.erase("x_embedder.proj.weight");
  CHECK(contains(refusal(ErrorKind::checkpoint, file), "has no tensor 'x_embedder.proj.weight'"));
  file = file_of("facebook-dit");
  file.tensors["x_embedder.proj.weight"] = {1'000'000'000, 0, 2, 2};
  CHECK(contains(refusal(ErrorKind::checkpoint, file), "is 1000000000"));
  file = file_of("facebook-dit");
  file.tensors["y_embedder.embedding_table.weight"] = {1'000'000, 0};  // no byte of it is in the file
  CHECK(contains(refusal(ErrorKind::checkpoint, file), "is 0"));
  file.tensors["y_embedder.embedding_table.weight"] = {1'000'000, 1};
  CHECK(contains(refusal(ErrorKind::checkpoint, file), "is not as wide as a token"));
  file.format = "nobody's";
  CHECK(contains(refusal(ErrorKind::config, file), "nobody's"));
}

TEST_CASE("what diffusers has no model or schedule for is not given as one of its") {
  const auto formats = [](const ModelNeeds& spec, const Options& more) {
    return make_plugin<Model>("models", "dit", with(with(kSizes, {{"convention", "diffusers"}}), more), spec)
        ->foreign_formats();
  };
  CHECK(formats(kSpec, {}) == std::vector<std::string>{"diffusers"});
  CHECK(formats(needs({3, 8, 8}, 6, 0), {}).empty());
  CHECK(formats(needs({3, 8, 16}, 6, 10), {}).empty());
  CHECK(formats(kSpec, {{"mlp_ratio", int64_t{2}}}).empty());
  CHECK(contains(error_of(ErrorKind::config,
                          [] {
                            file_of("diffusers", needs({3, 8, 16}, 6, 10));
                          }),
                 "DiTTransformer2DModel makes square pictures"));

  const auto flow = [](const Options& options, const std::string& format) {
    return make_plugin<ditto::Scheduler>("schedulers", "rectified_flow", options)->foreign_config(format);
  };
  CHECK((flow({}, "diffusers").at("_class_name") == ditto::OptionValue("FlowMatchEulerDiscreteScheduler")));
  CHECK(flow({{"model_time_scale", 1.0}}, "diffusers").empty());
  CHECK(flow({}, "facebook-dit").empty());
}

TEST_CASE("a NeMo file says its model's sizes: grouped heads by their norms, text and places where it has them") {
  ForeignShapes file{"nemo", "nemo.safetensors", {}, "", {}};
  file.tensors = {{"x_embedder.weight", {32, 12}}, {"final_layer_linear.weight", {24, 32}}};
  for (const char* number : {"0", "1", "2"}) {
    const std::string layer = std::string("decoder.layers.") + number + ".";
    file.tensors[layer + "self_attention.linear_qkv.weight"] = {96, 32};
    file.tensors[layer + "mlp.linear_fc1.weight"] = {64, 32};
  }
  const std::string first = "decoder.layers.0.", norm = first + "self_attention.q_layernorm.weight";
  const ditto::NemoSizes plain(file, "self_attention");
  CHECK(plain.depth == 3);
  CHECK(plain.width == 32);
  CHECK(plain.hidden == 64);
  CHECK(plain.heads == 0);
  CHECK(plain.kv_heads == 0);
  CHECK(plain.frames == 0);
  auto needs = plain.needs(file, 2);
  CHECK(needs.inputs.size() == 2);
  CHECK(needs.inputs.at(0).shape.at(0) == 3);
  CHECK(needs.out_channels == 6);

  file.tensors[norm] = {8};  // 4 heads of 8 numbers, and as many of keys and values
  const ditto::NemoSizes whole(file, "self_attention");
  CHECK(whole.heads == 4);
  CHECK(whole.kv_heads == 0);

  file.tensors[first + "self_attention.linear_qkv.weight"] = {64, 32};  // 4 of queries, 2 of keys, 2 of values
  file.tensors[first + "cross_attention.linear_kv.weight"] = {64, 20};
  file.tensors["pos_embedder.emb_t.weight"] = {7, 32};
  file.tensors["pos_embedder.emb_h.weight"] = {9, 32};
  const ditto::NemoSizes grouped(file, "self_attention");
  CHECK(grouped.heads == 4);
  CHECK(grouped.kv_heads == 2);
  CHECK(grouped.frames == 7);
  CHECK(grouped.side == 9);
  needs = grouped.needs(file, 2);
  REQUIRE(needs.inputs.size() == 4);
  CHECK(needs.inputs[2].name == "text");
  CHECK(needs.inputs[2].shape == std::vector<int64_t>{-1, 20});
  CHECK(needs.inputs[3].name == "text_mask");

  file.tensors[first + "self_attention.linear_qkv.weight"] = {56, 32};  // 4 heads and 3 more
  CHECK_THROWS_WITH_AS(ditto::NemoSizes(file, "self_attention"),
                       doctest::Contains("is not of whole heads of 8 numbers"), ditto::Error);
}
