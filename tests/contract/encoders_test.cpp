// The contract tests of sdk/testing, run on every encoder of the tree. One that is new is tested with its defaults on
// pictures; where those do not do, its options and data stand in the table below.
#include <map>

#include "tests/contract/contract.h"

namespace ditto::contract {
namespace {

using testing::OptionValues;

struct EncoderCase {
  TensorSpecs data;
  OptionValues options = {};
};

// With the tokenizers of the golden files.
std::vector<EncoderCase> text_cases(const char* tokenizer, int64_t vocabulary,
                                    const std::vector<OptionValues>& variants) {
  const auto folder = std::string(DITTO_SOURCE_DIR) + "/tests/golden/text_encoders/" + tokenizer;
  std::vector<EncoderCase> cases;
  for (OptionValues options : variants) {
    options.merge(OptionValues{{"tokenizer", OptionValue(folder)},
                               {"tokens", number(7)},
                               {"depth", number(2)},
                               {"width", number(16)},
                               {"heads", number(4)},
                               {"hidden", number(24)},
                               {"vocabulary", number(vocabulary)}});
    cases.push_back({{{"story", at::kByte, {-1}, "UTF-8"}}, std::move(options)});
    cases.back().options.merge(OptionValues{{"takes", text("story")}, {"name", text("words")}});
  }
  return cases;
}

std::vector<EncoderCase> join_text_cases() {
  using Texts = std::vector<std::string>;
  TensorSpecs data;
  const auto add = [&](const std::string& name, int64_t places, int64_t width) {
    data.push_back({name, at::kFloat, {places, width}, ""});
    data.push_back({name + "_mask", at::kBool, {places}, ""});
    data.push_back({name + "_pooled", at::kFloat, {width + 1}, ""});
  };
  add("large", 3, 4), add("giant", 3, 6), add("long", 5, 7);
  return {{data, {{"wide", Texts{"large", "giant"}}, {"pooled", Texts{"giant"}}}},
          {data, {{"wide", Texts{"large", "giant"}}, {"then", Texts{"long"}}, {"pooled", Texts{"large", "giant"}}}},
          {data, {{"wide", Texts{"long"}}}}};
}

std::vector<EncoderCase> autoencoder_cases() {
  const TensorSpecs data{{"image", at::kFloat, {3, 16, 16}, "-1 … 1"}};
  const OptionValue channels = std::vector<int64_t>{4, 8, 8};
  const OptionValues tiled = small_autoencoder({{"preset", text("sd3")},
                                                {"channels", channels},
                                                {"latent", number(2)},
                                                {"mean", std::vector<double>{0.5, -0.25}},
                                                {"std", std::vector<double>{2, 0.5}},
                                                {"shift", OptionValue(0.0)},
                                                {"scale", OptionValue(0.75)},
                                                {"draw", text("mean")},
                                                {"tile", number(8)},
                                                {"overlap", OptionValue(0.5)},
                                                {"slice", true},
                                                {"upcast", true}}),
                     whole = small_autoencoder({{"middle_attention", false},
                                                {"quant", false},
                                                {"post_quant", false},
                                                {"shift", OptionValue(0.1)}});
  return {{data, small_autoencoder()}, {data, tiled}, {data, whole}};
}

}  // namespace

TEST_CASE("every encoder keeps its promises") {
  const std::vector<EncoderCase> pictures{{{{"image", at::kFloat, {3, 16, 16}, "-1 … 1"}}}};
  const auto sides = [](int64_t side) { return OptionValue(std::vector<int64_t>{side, side}); };
  const std::map<std::string, std::vector<EncoderCase>> table{
      {"t5", text_cases("t5", 64,
                        {{{"head_width", number(6)}, {"gated", false}, {"zero_padding", true}},
                         {{"head_width", number(4)}, {"own_positions", true}, {"clean", text("clip")}}})},
      {"clip_text",
       text_cases(
           "clip", 521,
           {{{"pad", text("!")}},
            {{"layer", number(-2)}, {"final_norm", false}, {"projection", number(10)}, {"activation", text("gelu")}}})},
      {"bert", text_cases("bert", 65, {{}, {{"pooling", text("pooler")}}, {{"pooling", text("cls")}}})},
      {"join_text", join_text_cases()},
      {"autoencoder_kl", autoencoder_cases()},
      {"fit_text", {{{{"text", at::kFloat, {-1, 12}, ""}, {"text_mask", at::kBool, {-1}, ""}}}}},
      {"pyramid",
       {{pictures[0].data, {{"size", sides(4)}}},
        {pictures[0].data, {{"size", sides(4)}, {"crop", sides(8)}, {"name", text("few")}, {"filter", text("area")}}}}},
      {"noise_condition", {{{{"low", at::kFloat, {3, 4, 4}, "-1 … 1"}}}}}};
  for (const auto& [id, path] : plugins_of("encoders")) {
    const auto it = table.find(id);
    for (const EncoderCase& test : it == table.end() ? pictures : it->second)
      passes(testing::check_encoder(path, test.data, test.options));
  }
}

}  // namespace ditto::contract
