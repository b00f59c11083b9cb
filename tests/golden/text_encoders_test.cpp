// Text encoders against their references: transformers' classes, run by text_encoders/make.py. Weights of their names,
// filled through the encoder's own name map, give their embeddings of texts that the encoder itself cuts into tokens;
// what shapes and config.json say the encoder reads; published sizes have the reference's parameters.
//
// Claim (numbers): T5, its version 1.1, UMT5, CLIP's text encoders with and without projection, and BERT are
// transformers' classes, run as they are: ids, embeddings and pooled texts to 1e-10 in fp64, and their parameters by
// number, name and shape.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>
#include <support/reference.h>

namespace text_encoders {
namespace {

namespace fs = std::filesystem;
using ditto::Batch;
using ditto::Encoder;
using ditto::OptionValue;
using nlohmann::json;
using torch::Tensor;
using Options = std::map<std::string, OptionValue>;
using Texts = std::vector<std::string>;

const std::string kFolder = DITTO_SOURCE_DIR "/tests/golden/text_encoders";
const std::map<std::string, std::string> kTokenizers{{"t5", "t5"}, {"clip_text", "clip"}, {"bert", "bert"}};

struct Case {
  std::string name;
  json golden, spec;

  explicit Case(const fs::path& path)
      : name(path.stem()), golden(json::parse(std::ifstream(path))), spec(golden.at("case")) {}
  bool is_count() const { return golden.contains("parameters"); }
  std::string encoder() const { return spec.at("encoder").get<std::string>(); }
  Options part(const char* key) const {
    Options made;
    if (spec.contains(key))
      for (const auto& [name_of, value] : spec.at(key).items()) made[name_of] = ditto::test::option_of(value);
    return made;
  }
  // What a recipe says; and what a file does.
  Options said() const {
    auto made = part("options");
    if (!is_count()) made["tokenizer"] = kFolder + "/" + kTokenizers.at(encoder());
    return made;
  }
  Options all() const {
    auto made = said();
    made.merge(part("sizes"));
    return made;
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<fs::path> paths;
    for (const auto& file : fs::directory_iterator(kFolder))
      if (file.path().extension() == ".json") paths.push_back(file.path());
    std::sort(paths.begin(), paths.end());
    return std::vector<Case>(paths.begin(), paths.end());
  }();
  return all;
}

const ditto::TensorSpecs kCaption{{"caption", torch::kByte, {-1}, "UTF-8"}};

std::shared_ptr<Encoder> made(const Case& test, const Options& options, bool opens_files = true) {
  return ditto::test::make_plugin<Encoder>("encoders", test.encoder(), options,
                                           {.inputs = kCaption, .folder = {}, .opens_files = opens_files});
}

Batch batch_of(const Texts& texts) {
  Batch batch;
  size_t longest = 1;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  auto bytes = torch::zeros({static_cast<int64_t>(texts.size()), static_cast<int64_t>(longest)}, torch::kByte);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::memcpy(bytes[static_cast<int64_t>(i)].data_ptr(), texts[i].data(), texts[i].size());
    batch.ids.push_back(static_cast<int64_t>(i)), batch.weights.push_back(1);
  }
  batch["caption"] = bytes;
  return batch;
}

Batch encoded(const Encoder& encoder, Batch batch, at::ScalarType dtype, torch::Device device = torch::kCPU) {
  const torch::NoGradGuard no_grad;
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(1));
  ctx.compute = dtype;
  ctx.device = device;
  ctx.phase = ditto::Phase::evaluate;
  return encoder.encode(encoder.precompute(std::move(batch), ctx), ctx);
}

void compare(const Case& test, at::ScalarType dtype, double most) {
  const auto encoder = made(test, test.all());
  encoder->to(dtype);
  ditto::test::fill_as_reference(*encoder, encoder->foreign(test.spec.at("format").get<std::string>()));
  const auto texts = test.spec.at("texts").get<Texts>();
  const auto out = encoded(*encoder, batch_of(texts), dtype);
  for (const auto& [name, golden] : test.golden.at("tensors").items()) {
    const double apart = ditto::test::distance(name, golden, out.at(name));
    CHECK_MESSAGE(apart <= most, test.name << ": " << name << " differs by " << apart);
  }
  CHECK(out.has("text_pooled") == test.golden.at("tensors").contains("text_pooled"));
  const auto lengths = test.golden.at("lengths").get<std::vector<int64_t>>();
  CHECK(out.lengths.at("text") == lengths);
  for (size_t i = 0; i < texts.size(); ++i) {
    CHECK(encoder->tokens(texts[i])->ids == test.golden.at("ids").at(i).get<std::vector<int64_t>>());
    CHECK(out.at("text_mask")[static_cast<int64_t>(i)].sum().item<int64_t>() == lengths[i]);
  }
}

// A file of the encoder's weights, as it would look at it.
ditto::ForeignShapes file_of(const Case& test) {
  const auto encoder = made(test, test.all());
  ditto::ForeignShapes file{
      test.spec.at("format").get<std::string>(), "model.safetensors", {}, "config.json", test.part("config")};
  const auto parameters = encoder->named_parameters();
  for (const auto& map : encoder->foreign(file.format).tensors)
    for (const auto& name : map.theirs) file.tensors[name] = ditto::test::reference_shape(map, parameters[map.ours]);
  return file;
}

// What the encoder reads of a file, by option.
Options read_of(const Case& test, const ditto::ForeignShapes& file, const Options& recipe) {
  ditto::OptionMap given{"encoder.text", "test.toml:1:1", {}};
  for (const auto& [key, value] : recipe) given.given[key] = {value, "test.toml:1:1"};
  ditto::OptionReader reader(given);
  (void)ditto::test::open_plugin<Encoder>("encoders", test.encoder()).foreign_needs(reader, file);
  reader.finish();
  Options found;
  for (const auto& info : reader.declared()) found[info.name] = info.value;
  return found;
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const ditto::Error& error) {
    return error.what();
  }
  return {};
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const Case& case_of(const std::string& name) {
  return *std::find_if(cases().begin(), cases().end(), [&](const Case& test) { return test.name == name; });
}

}  // namespace

TEST_CASE("text encoders: ids, embeddings and pooled texts are the reference's, filled by its own names") {
  for (const Case& test : cases()) {
    if (test.is_count()) continue;
    CAPTURE(test.name);
    compare(test, torch::kDouble, 1e-10);
    compare(test, torch::kFloat, 1e-5);
  }
}

TEST_CASE("text encoders: a published size has the reference's parameters, by number, name and shape") {
  const ditto::ShapesAlone no_numbers;
  for (const Case& test : cases()) {
    if (!test.is_count()) continue;
    CAPTURE(test.name);
    const auto encoder = made(test, test.all(), /*opens_files=*/false);
    int64_t count = 0;
    for (const auto& one : encoder->parameters()) count += one.numel();
    CHECK(count == test.golden.at("parameters").get<int64_t>());
    CHECK(ditto::test::hash_of_names(*encoder, encoder->foreign(test.spec.at("format").get<std::string>())) ==
          test.golden.at("names").get<std::string>());
  }
}

TEST_CASE("text encoders: of a published size shapes alone are computed, without a tokenizer") {
  const ditto::ShapesAlone no_numbers;
  for (const Case& test : cases()) {
    if (!test.is_count()) continue;
    CAPTURE(test.name);
    const auto encoder = made(test, test.all(), /*opens_files=*/false);
    const auto out = encoded(*encoder, batch_of({"a", "few words"}), torch::kFloat, torch::kMeta);
    for (const auto& spec : encoder->makes()) {
      auto shape = spec.shape;
      shape.insert(shape.begin(), 2);
      CHECK(out.at(spec.name).is_meta());
      CHECK(out.at(spec.name).sizes().vec() == shape);
    }
    CHECK_FALSE(encoder->tokens("a").has_value());
  }
}

TEST_CASE("text encoders: sizes are what the weights and their config.json say, and a recipe says nothing else") {
  for (const Case& test : cases()) {
    if (test.is_count()) continue;
    CAPTURE(test.name);
    const auto file = file_of(test);
    const auto found = read_of(test, file, test.said());
    for (const auto& [name, value] : test.part("sizes")) {
      CAPTURE(name);
      CHECK(found.at(name) == value);
    }
    auto deeper = test.said();
    deeper["depth"] = int64_t{7};
    CHECK(
        holds(refusal_of([&] { read_of(test, file, deeper); }), "depth is 7, and of the weights in model.safetensors"));
    for (const std::string key : {"vocab_size", "d_ff", "intermediate_size", "num_layers", "num_hidden_layers"}) {
      auto other = file;
      const auto at = other.config.find(key);
      if (at == other.config.end()) continue;
      at->second = std::get<int64_t>(at->second) + 1;
      CHECK(holds(refusal_of([&] { read_of(test, other, test.said()); }), "\"" + key + "\" is "));
    }
  }
}

TEST_CASE("text encoders: a config.json of another function than the plugin's is refused") {
  const auto says = [](const std::string& name, const std::string& key, const OptionValue& value) {
    const Case& test = case_of(name);
    auto file = file_of(test);
    file.config[key] = value;
    const auto said = refusal_of([&] { read_of(test, file, test.said()); });
    CHECK_MESSAGE(holds(said, "config.json: \"" + key + "\" is " + ditto::to_text(value)), name << ": " << said);
  };
  const auto text = [](const char* value) { return OptionValue(std::string(value)); };
  for (const char* name : {"t5_first", "t5_second", "umt5"}) {
    says(name, "dense_act_fn", text("gelu"));
    says(name, "is_gated_act", name == std::string("t5_first"));
    says(name, "is_decoder", true);
  }
  says("t5_first", "model_type", text("umt5"));
  says("umt5", "model_type", text("t5"));
  const auto of_class = [](const std::string& name, const char* other) {
    auto file = file_of(case_of(name));
    file.config["architectures"] = std::vector<std::string>{other};
    return refusal_of([&] { read_of(case_of(name), file, case_of(name).said()); });
  };
  CHECK(holds(of_class("t5_first", "UMT5EncoderModel"), "are of UMT5EncoderModel, and in model.safetensors the first"));
  CHECK(holds(of_class("umt5", "T5EncoderModel"), "are of T5EncoderModel, and in model.safetensors each block"));
  CHECK(of_class("umt5", "UMT5ForConditionalGeneration").empty());
  says("bert_mean", "model_type", text("roberta"));
  says("clip_projection", "architectures", std::vector<std::string>{"CLIPTextModel"});
  says("clip_last", "architectures", std::vector<std::string>{"CLIPTextModelWithProjection"});
}

TEST_CASE("text encoders: a text of CLIP ends where transformers has its end, if config.json does not say it") {
  const Case& test = case_of("clip_last");
  auto file = file_of(test);
  CHECK(read_of(test, file, test.said()).at("end_token") == OptionValue(int64_t{2}));
  file.config.erase("eos_token_id");
  CHECK(read_of(test, file, test.said()).at("end_token") == OptionValue(int64_t{49407}));
}

TEST_CASE("text encoders: CLIP's other format is named where a file is of it") {
  for (const auto& [name, other, its] : {std::tuple{"clip_skip", "transformers", "transformers5"},
                                         std::tuple{"clip_last", "transformers5", "transformers"}}) {
    const Case& test = case_of(name);
    auto file = file_of(test);
    file.format = other;
    CHECK(holds(refusal_of([&] { read_of(test, file, test.said()); }), "set format = \"" + std::string(its) + "\""));
  }
}

TEST_CASE("text encoders: every option is set by a case") {
  std::map<std::string, std::set<std::string>> set;
  for (const Case& test : cases())
    for (const auto& [key, value] : test.all()) set[test.encoder()].insert(key);
  for (const auto& [encoder, given] : set) {
    ditto::OptionReader reader({encoder, "test.toml:1:1", {}});
    ditto::test::open_plugin<Encoder>("encoders", encoder).declare(reader);
    for (const auto& option : reader.declared()) {
      // What all of them have is set for one, or by other tests: the names in the contract tests.
      if (std::set<std::string>{"takes", "name", "pad", "clean", "zero_padding"}.count(option.name)) continue;
      CAPTURE(encoder);
      CHECK_MESSAGE(given.count(option.name), option.name);
    }
  }
}

TEST_CASE("text encoders: what does not fit together is refused in a sentence") {
  const auto refused = [](const std::string& name, const Options& other) {
    const Case& test = case_of(name);
    auto options = test.all();
    for (const auto& [key, value] : other) options[key] = value;
    return refusal_of([&] { made(test, options); });
  };
  const OptionValue few = int64_t{40}, many = int64_t{800}, ends = int64_t{3}, long_text = int64_t{12};
  for (const char* name : {"t5_first", "clip_last", "bert_mean"}) {
    CHECK(holds(refused(name, {{"vocabulary", few}}), "has a row for each of 40 pieces, and the vocabulary of "));
    CHECK(holds(refused(name, {{"tokenizer", std::string()}}), "tokenizer: is not said"));
    CHECK(holds(refused(name, {{"takes", std::string("story")}}), "takes = \"story\": there is no such text"));
  }
  CHECK(holds(refused("clip_last", {{"vocabulary", many}}), "has a row for each of 800 pieces"));
  CHECK(holds(refused("clip_last", {{"end_token", ends}}), "end_token: is 3, and texts of the tokenizer in "));
  CHECK(holds(refused("clip_last", {{"tokens", long_text}}), "are more than the places it knows, 11"));
  CHECK(holds(refused("clip_last", {{"layer", int64_t{-4}}}), "is before the first of 3 blocks"));
  CHECK(holds(refused("bert_cls", {{"pooling", std::string("pooler")}}), "and there is no such map"));
  const Case& test = case_of("t5_first");
  const auto encoder = made(test, test.all());
  CHECK(holds(refusal_of([&] {
                encoded(*encoder, batch_of({"fine", "\xff"}), torch::kFloat);
              }),
              "caption of sample 1: is no UTF-8"));
}

TEST_CASE("text encoders: a fingerprint knows the options that embeddings depend on, and the tokenizer") {
  for (const char* name : {"t5_first", "clip_last", "bert_mean"}) {
    CAPTURE(name);
    const Case& test = case_of(name);
    const auto of = [&](const std::string& key, const OptionValue& value) {
      auto options = test.all();
      options[key] = value;
      return made(test, options)->fingerprint();
    };
    const auto as_it_is = made(test, test.all())->fingerprint();
    CHECK(of("name", std::string("other")) == as_it_is);
    const auto zeros = test.all().count("zero_padding") ? false : true;
    std::set<std::string> others{as_it_is, of("tokens", int64_t{8}), of("clean", std::string("clip")),
                                 of("zero_padding", zeros), of("eps", 1e-3)};
    CHECK(others.size() == 5);
  }
}

}  // namespace text_encoders
