// Texts that are joined: as SDXL, Stable Diffusion 3 and Flux have them.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/ditto.h>
#include <ditto/encoder.h>

#include "tests/support/open_plugin.h"

namespace ditto::joining {
namespace {

using torch::Tensor;
using Names = std::vector<std::string>;
using Options = std::map<std::string, OptionValue>;

struct Made {
  TensorSpecs specs;
  Batch batch;

  // Two samples of a text of `places` places, of which `lengths` count.
  void add(const std::string& name, int64_t places, int64_t width, std::vector<int64_t> lengths) {
    specs.push_back({name, torch::kFloat, {places, width}, ""});
    specs.push_back({name + "_mask", torch::kBool, {places}, ""});
    specs.push_back({name + "_pooled", torch::kFloat, {width + 1}, ""});
    batch[name] = torch::rand({2, places, width});
    batch[name + "_mask"] = torch::arange(places).unsqueeze(0).lt(torch::tensor(lengths).unsqueeze(1));
    batch[name + "_pooled"] = torch::rand({2, width + 1});
    batch.lengths[name] = std::move(lengths);
  }
};

Made made() {
  Made all;
  all.batch.ids = {0, 1}, all.batch.weights = {1, 1};
  all.add("large", 3, 2, {3, 1});
  all.add("giant", 3, 4, {2, 2});
  all.add("long", 5, 8, {4, 1});
  return all;
}

std::shared_ptr<Encoder> encoder_of(const TensorSpecs& specs, const Options& options) {
  return test::make_plugin<Encoder>("encoders", "join_text", options, {.inputs = specs});
}

Batch joined(const Made& from, const Options& options) {
  const auto encoder = encoder_of(from.specs, options);
  Context ctx(std::make_shared<OpTable>(), Random(1));
  auto out = encoder->encode(encoder->precompute(from.batch, ctx), ctx);
  for (const auto& spec : encoder->makes()) {
    auto shape = spec.shape;
    shape.insert(shape.begin(), 2);
    CHECK(out.at(spec.name).sizes().vec() == shape);
    CHECK((out.at(spec.name).scalar_type() == spec.dtype));
  }
  return out;
}

Names names_of(const TensorSpecs& specs) {
  Names names;
  for (const auto& spec : specs) names.push_back(spec.name);
  return names;
}

std::string refusal(const TensorSpecs& specs, const Options& options) {
  try {
    encoder_of(specs, options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("SDXL's two texts are side by side, and the second's pooled one is theirs") {
  const auto from = made();
  const auto out = joined(from, {{"wide", Names{"large", "giant"}}, {"pooled", Names{"giant"}}});
  CHECK(torch::equal(out.at("text").slice(2, 0, 2), from.batch.at("large")));
  CHECK(torch::equal(out.at("text").slice(2, 2), from.batch.at("giant")));
  CHECK(torch::equal(out.at("text_pooled"), from.batch.at("giant_pooled")));
  CHECK(out.lengths.at("text") == std::vector<int64_t>{3, 2});
  CHECK(torch::equal(out.at("text_mask"), torch::tensor({{true, true, true}, {true, true, false}})));
}

TEST_CASE("Stable Diffusion 3's third text follows, and what is narrower ends with zeros") {
  const auto from = made();
  const auto out = joined(from, {{"wide", Names{"large", "giant"}},
                                 {"then", Names{"long"}},
                                 {"pooled", Names{"large", "giant"}},
                                 {"name", std::string("words")}});
  const auto text = out.at("words");
  CHECK(torch::equal(text.slice(1, 0, 3).slice(2, 2, 6), from.batch.at("giant")));
  CHECK(text.slice(1, 0, 3).slice(2, 6).eq(0).all().item<bool>());
  CHECK(torch::equal(text.slice(1, 3), from.batch.at("long")));
  CHECK(torch::equal(out.at("words_pooled"),
                     torch::cat({from.batch.at("large_pooled"), from.batch.at("giant_pooled")}, 1)));
  CHECK(out.lengths.at("words") == std::vector<int64_t>{7, 4});
  CHECK(torch::equal(out.at("words_mask")[1], torch::tensor({true, true, false, true, false, false, false, false})));
}

TEST_CASE("Flux's text is one encoder's, and the pooled one another's") {
  const auto from = made();
  const auto encoder = encoder_of(from.specs, {{"wide", Names{"long"}}, {"pooled", Names{"large"}}});
  CHECK((names_of(encoder->takes()) == Names{"long", "long_mask", "large_pooled"}));
  const auto out = joined(from, {{"wide", Names{"long"}}, {"pooled", Names{"large"}}});
  CHECK(torch::equal(out.at("text"), from.batch.at("long")));
  CHECK(torch::equal(out.at("text_pooled"), from.batch.at("large_pooled")));
  CHECK_FALSE(joined(from, {{"wide", Names{"long"}}}).has("text_pooled"));
}

TEST_CASE("texts that cannot be joined are refused in a sentence, and other joins have other fingerprints") {
  auto specs = made().specs;
  CHECK(holds(refusal(specs, {}), "wide: names no text"));
  CHECK(holds(refusal(specs, {{"wide", Names{"large", "long"}}}), "puts \"long\" of 5 places beside \"large\" of 3"));
  CHECK(holds(refusal(specs, {{"wide", Names{"small"}}}), "there is no \"small\" of a text, only: \"large\""));
  specs.push_back({"open", torch::kFloat, {-1, 4}, ""});
  specs.push_back({"open_mask", torch::kBool, {-1}, ""});
  CHECK(holds(refusal(specs, {{"wide", Names{"open"}}}), "as many places as a batch's longest text"));
  CHECK(encoder_of(specs, {{"wide", Names{"large"}}})->fingerprint() !=
        encoder_of(specs, {{"wide", Names{"giant"}}})->fingerprint());
}

}  // namespace ditto::joining
