// Encoder autoencoder_kl against diffusers' AutoencoderKL: encoders/make_autoencoder_kl.py ran the class and its own
// converters of names.
//
// Claim (numbers): The encoder autoencoder_kl is diffusers' AutoencoderKL with the scale of its pipelines: moments,
// latents and pictures, whole and in tiles, to 1e-10 in fp64; files of latent-diffusion, and of diffusers before its
// attention had other names, are read by name.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/nn/autoencoder.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>
#include <support/reference.h>

using ditto::Batch;
using ditto::Context;
using ditto::Encoder;
using ditto::OptionValue;
using ditto::test::distance;
using nlohmann::json;
using torch::Tensor;
using Options = std::map<std::string, OptionValue>;
using Shape = std::vector<int64_t>;

namespace {

constexpr double kFp64 = 1e-10, kFp32 = 1e-5;

const json& golden() {
  static const json all = ditto::test::read_json("tests/golden/encoders/autoencoder_kl.json");
  return all;
}

OptionValue option_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.front().is_number_integer()) return value.get<Shape>();
  return value.get<std::vector<double>>();
}

Options shape_of(const json& options) {
  Options made;
  for (const auto& [key, value] : options.items()) made[key] = option_of(value);
  return made;
}

// With the preset's own scale and shift, which are those of the case.
Options options_of(const json& one) {
  auto made = shape_of(one.at("options"));
  made["draw"] = std::string("mean");
  for (const char* key : {"mean", "std"})
    if (one.contains(key)) made[key] = one.at(key).get<std::vector<double>>();
  return made;
}

std::shared_ptr<Encoder> encoder_of(const Options& options, const Shape& picture) {
  return ditto::test::make_plugin<Encoder>("encoders", "autoencoder_kl", options,
                                           {.inputs = {{"image", at::kFloat, picture, "-1 … 1"}}});
}

std::shared_ptr<Encoder> filled(const Options& options, const Shape& picture, at::ScalarType dtype) {
  auto encoder = encoder_of(options, picture);
  ditto::test::fill_as_reference(*encoder, encoder->foreign("diffusers"));
  encoder->to(dtype);
  return encoder;
}

Context context(at::ScalarType compute) {
  Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(7));
  ctx.compute = compute;
  ctx.phase = ditto::Phase::evaluate;
  return ctx;
}

Shape picture_of(const json& one) {
  auto shape = one.at("sides").get<Shape>();
  shape.insert(shape.begin(), 3);
  return shape;
}

Batch images(const std::string& name, const Shape& picture, at::ScalarType dtype) {
  Batch batch;
  batch.ids = {11, 4};
  batch.weights = {1, 1};
  batch["image"] = ditto::test::values(name + " image", {2, picture[0], picture[1], picture[2]}, 1).to(dtype);
  return batch;
}

Tensor latents(const std::string& name, const Encoder& encoder, at::ScalarType dtype) {
  auto shape = encoder.makes().front().shape;
  shape.insert(shape.begin(), 2);
  return ditto::test::values(name + " clean", shape, 1.5).to(dtype);
}

struct Made {
  Tensor moments, clean, picture;
};

Made made_by(const std::string& name, const Encoder& encoder, const Shape& picture, at::ScalarType dtype,
             at::ScalarType compute) {
  const torch::NoGradGuard no_grad;
  auto ctx = context(compute);
  const Batch kept = encoder.precompute(images(name, picture, dtype), ctx);
  return {kept.at("clean_moments"), encoder.encode(kept, ctx).at("clean"),
          encoder.decode(latents(name, encoder, dtype), ctx)};
}

void compare(const std::string& name, const json& one, Options options, const std::string& prefix) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? kFp64 : kFp32;
    const auto encoder = filled(options, picture_of(one), dtype);
    const auto made = made_by(name, *encoder, picture_of(one), dtype, dtype);
    const auto check = [&](const std::string& what, const Tensor& found) {
      const double d = distance(prefix + what, one.at("tensors").at(prefix + what), found);
      CHECK_MESSAGE(d <= tolerance, name << ", " << prefix << what << " in " << c10::toString(dtype) << ": " << d);
    };
    check("moments", made.moments);
    check("clean", made.clean);
    check("picture", made.picture);
    check("divergence", ditto::LatentMoments::of(made.moments).divergence());
    CHECK(encoder->decoded(made.clean.sizes().slice(1).vec()) == made.picture.sizes().slice(1).vec());
  }
}

// What another project's file of these tensors is, with the config.json beside it.
ditto::ForeignShapes file_of(const std::string& format, const ditto::ForeignConfig& config = {}) {
  const auto encoder = encoder_of(shape_of(golden().at("names").at("options")), {3, 16, 16});
  ditto::ForeignShapes file{format, "vae.safetensors", {}, config.empty() ? "" : "config.json", config};
  const auto parameters = encoder->named_parameters();
  for (const auto& tensor : encoder->foreign(format).tensors)
    for (const auto& name : tensor.theirs)
      file.tensors[name] = ditto::test::reference_shape(tensor, parameters[tensor.ours]);
  return file;
}

std::map<std::string, OptionValue> options_read(const ditto::ForeignShapes& file, const Options& given) {
  ditto::OptionMap recipe{"encoder.image", "test.toml:1:1", {}};
  for (const auto& [key, value] : given) recipe.given[key] = {value, "test.toml:2:1"};
  ditto::OptionReader reader(recipe);
  ditto::test::open_plugin<Encoder>("encoders", "autoencoder_kl").foreign_needs(reader, file);
  std::map<std::string, OptionValue> read;
  for (const auto& option : reader.declared()) read[option.name] = option.value;
  return read;
}

// The one sentence of a refusal; empty: there is none.
template <class Make>
std::string refusal(const Make& make) {
  try {
    make();
  } catch (const ditto::Error& error) {
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const Options kSmall{{"channels", Shape{4, 8, 8}}, {"groups", int64_t{2}}, {"layers", int64_t{1}}};

Options small(Options more) {
  more.insert(kSmall.begin(), kSmall.end());
  return more;
}

}  // namespace

TEST_CASE("autoencoders: moments, latents and pictures are the reference's, whole and in tiles") {
  for (const auto& [name, one] : golden().at("cases").items()) {
    CAPTURE(name);
    auto options = options_of(one);
    compare(name, one, options, "");
    options["tile"] = one.at("tile").get<int64_t>();
    options["overlap"] = one.at("overlap").get<double>();
    compare(name, one, options, "tiled ");
  }
}

TEST_CASE("autoencoders: one picture at a time (slice) is the same function, and upcast computes in fp32") {
  const Shape picture{3, 16, 8};
  const auto plain = filled(small({}), picture, at::kFloat),
             sliced = filled(small({{"slice", true}}), picture, at::kFloat),
             upcast = filled(small({{"upcast", true}}), picture, at::kFloat);
  const auto whole = made_by("", *plain, picture, at::kFloat, at::kFloat),
             each = made_by("", *sliced, picture, at::kFloat, at::kFloat),
             wide = made_by("", *upcast, picture, at::kFloat, at::kBFloat16),
             narrow = made_by("", *plain, picture, at::kFloat, at::kBFloat16);
  CHECK(ditto::test::apart(each.moments, whole.moments) < 1e-5);
  CHECK(ditto::test::apart(each.picture, whole.picture) < 1e-5);
  CHECK(wide.moments.equal(whole.moments));
  CHECK(wide.picture.equal(whole.picture));
  CHECK(ditto::test::apart(narrow.moments, whole.moments) > 1e-4);
}

TEST_CASE("autoencoders: a draw is the sample's own, of the Gaussian that its moments say, in every phase") {
  const Shape picture{3, 8, 8};
  const auto encoder = filled(small({{"scale", 2.0}, {"shift", 0.5}}), picture, at::kDouble);
  auto ctx = context(at::kDouble);
  const Batch kept = encoder->precompute(images("", picture, at::kDouble), ctx);
  const auto drawn = encoder->encode(kept, ctx).at("clean");
  const auto of = ditto::LatentMoments::of(kept.at("clean_moments"));
  const auto noise = ctx.random.normal(ditto::Purpose::encoding, kept.ids, of.mean.sizes().slice(1), at::kDouble);
  CHECK(ditto::test::apart(drawn, (of.mean + (of.log_variance / 2).exp() * noise - 0.5) * 2) < 1e-14);
  ctx.phase = ditto::Phase::train;
  CHECK(encoder->encode(kept, ctx).at("clean").equal(drawn));
  const auto second = encoder->encode(kept.slice(1, 2), ctx).at("clean");
  CHECK(second.equal(drawn.slice(0, 1, 2)));
  Batch later = kept;
  later.ids = {12, 4};
  CHECK_FALSE(encoder->encode(later, ctx).at("clean")[0].equal(drawn[0]));
}

TEST_CASE(
    "autoencoders: latent-diffusion's names are those that diffusers reads by its converter, and older ones too") {
  const auto encoder = encoder_of(shape_of(golden().at("names").at("options")), {3, 16, 16});
  const auto diffusers = encoder->foreign("diffusers"), ldm = encoder->foreign("ldm");
  const auto& expected = golden().at("names").at("ldm");
  REQUIRE(diffusers.tensors.size() == ldm.tensors.size());
  const auto parameters = encoder->named_parameters();
  size_t count = 0;
  for (size_t i = 0; i < ldm.tensors.size(); ++i) {
    const auto &here = diffusers.tensors[i], &there = ldm.tensors[i];
    REQUIRE(here.ours == there.ours);
    REQUIRE(here.theirs.size() == there.theirs.size());
    for (size_t part = 0; part < here.theirs.size(); ++part, ++count) {
      const auto& row = expected.at(here.theirs[part]);
      CHECK(there.theirs[part] == row.at("name").get<std::string>());
      CHECK(ditto::test::reference_shape(there, parameters[there.ours]) == row.at("shape").get<Shape>());
    }
  }
  CHECK(count == expected.size());
  CHECK((diffusers.former == golden().at("names").at("former").get<std::map<std::string, std::string>>()));
}

TEST_CASE(
    "autoencoders: options come from the file and its config.json, and a recipe or a config that says otherwise is "
    "refused") {
  const ditto::ForeignConfig config{{"_class_name", std::string("AutoencoderKL")},
                                    {"norm_num_groups", int64_t{2}},
                                    {"block_out_channels", Shape{4, 8, 8}},
                                    {"scaling_factor", 0.5},
                                    {"shift_factor", int64_t{1}},
                                    {"force_upcast", true}};
  const auto with = [&](const std::string& key, const OptionValue& value) {
    auto changed = config;
    changed[key] = value;
    return file_of("diffusers", changed);
  };
  for (const auto& [key, value] : Options{{"channels", Shape{4, 8, 8}},
                                          {"layers", int64_t{2}},
                                          {"latent", int64_t{4}},
                                          {"groups", int64_t{2}},
                                          {"middle_attention", true},
                                          {"quant", true},
                                          {"post_quant", true},
                                          {"scale", 0.5},
                                          {"shift", 1.0},
                                          {"upcast", true}})
    CHECK_MESSAGE(options_read(file_of("diffusers", config), {})[key] == value, key);
  CHECK(options_read(file_of("diffusers", {{"_class_name", std::string("AutoencoderKL")}}),
                     {{"groups", int64_t{2}}})["scale"] == OptionValue(0.18215));
  const auto none = [&](const std::string& key) {
    auto changed = config;
    changed.erase(key);
    return changed;
  };
  auto per_channel = none("shift_factor");
  per_channel["latents_mean"] = Shape{0, 1, 0, 1};
  per_channel["latents_std"] = std::vector<double>{1.5, 1, 1, 1};
  CHECK(options_read(file_of("diffusers", per_channel), {})["mean"] == OptionValue(std::vector<double>{0, 1, 0, 1}));
  const auto ldm = options_read(file_of("ldm"),
                                {{"preset", std::string("sd")}, {"channels", Shape{4, 8, 8}}, {"groups", int64_t{2}}});
  CHECK(ldm.at("channels") == OptionValue(Shape{4, 8, 8}));
  CHECK(ldm.at("scale") == OptionValue(0.18215));

  const auto refuses = [&](const ditto::ForeignShapes& file, const Options& given,
                           const std::vector<std::string>& parts) {
    const auto said = refusal([&] { options_read(file, given); });
    for (const auto& part : parts) CHECK_MESSAGE(has(said, part), part << " is not in: " << said);
  };
  refuses(file_of("diffusers", config), {{"scale", 0.25}}, {"scale", "0.25", "0.5", "vae.safetensors"});
  const auto plain = file_of("diffusers", none("shift_factor"));
  refuses(plain, {{"shift", 0.25}}, {"shift", "0.25", "0.0", "vae.safetensors"});
  refuses(plain, {{"mean", std::vector<double>{1, 1, 1, 1}}, {"std", std::vector<double>{2, 2, 2, 2}}},
          {"mean", "[1.0, 1.0, 1.0, 1.0]", "[]"});
  CHECK(options_read(plain, {{"shift", 0.0}})["shift"] == OptionValue(0.0));
  refuses(with("scaling_factor", int64_t{0}), {}, {"config.json", "\"scaling_factor\" is 0.0"});
  refuses(with("latents_mean", Shape{0, 1, 0, 1}), {}, {"config.json", "latents_mean", "4 and 0 numbers"});
  refuses(file_of("diffusers", config), {{"channels", Shape{4, 8}}}, {"channels", "[4, 8]", "[4, 8, 8]"});
  refuses(file_of("diffusers", config), {{"preset", std::string("sd")}}, {"channels", "[128, 256, 512, 512]"});
  refuses(with("block_out_channels", Shape{4, 8, 16}), {},
          {"config.json", "block_out_channels", "[4, 8, 16]", "[4, 8, 8]"});
  refuses(with("latent_channels", int64_t{8}), {}, {"config.json", "latent_channels", "8", "4"});
  refuses(with("use_quant_conv", false), {}, {"config.json", "use_quant_conv"});
  refuses(with("mid_block_add_attention", false), {}, {"config.json", "mid_block_add_attention"});
  refuses(with("act_fn", std::string("relu")), {}, {"config.json", "act_fn", "relu"});
  refuses(file_of("ldm"), {{"groups", int64_t{2}}}, {"scale", "no config.json"});
  refuses(file_of("ldm"), {{"scale", 2.0}}, {"groups", "no config.json"});
}

TEST_CASE(
    "autoencoders: sides that the factor does not divide, and options that do not go together, are refused in one "
    "sentence") {
  const auto refuses = [&](const Options& options, const Shape& picture, const std::vector<std::string>& parts) {
    const auto said = refusal([&] { encoder_of(options, picture); });
    for (const auto& part : parts) CHECK_MESSAGE(has(said, part), part << " is not in: " << said);
  };
  refuses(kSmall, {3, 16, 18}, {"autoencoder_kl", "[3, 16, 18]", "multiples of 4"});
  refuses(kSmall, {3, 2, 16, 16}, {"takes pictures [C, H, W]"});
  refuses(small({{"tile", int64_t{6}}}), {3, 16, 16}, {"tile", "6", "multiples of 4"});
  refuses(small({{"tile", int64_t{8}}, {"overlap", 0.25}}), {3, 16, 16}, {"tile", "overlap = 0.25", "multiples of 4"});
  refuses(small({{"overlap", 0.5}}), {3, 16, 16}, {"overlap", "tile is 0"});
  refuses(small({{"mean", std::vector<double>{1, 2}}}), {3, 16, 16}, {"mean", "4 channels"});
  refuses({{"channels", Shape{4, 6}}, {"groups", int64_t{4}}}, {3, 16, 16}, {"channels", "[4, 6]", "groups = 4"});
  const auto own_sides = encoder_of(kSmall, {3, ditto::kOwnSide, ditto::kOwnSide});
  CHECK((own_sides->makes().front().shape == Shape{4, ditto::kOwnSide, ditto::kOwnSide}));
  auto ctx = context(at::kFloat);
  CHECK(has(refusal([&] { own_sides->precompute(images("", {3, 12, 10}, at::kFloat), ctx); }), "multiples of 4"));
  CHECK((own_sides->decoded({4, 3, 5}) == Shape{3, 12, 20}));
  CHECK(has(refusal([&] { (void)own_sides->decoded({3, 3, 5}); }), "4 channels"));
}
