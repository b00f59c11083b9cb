// [conditioning], as NeMo Imagen's YAML files have it, says what sections of a recipe say.
#include <doctest/doctest.h>

#include "core/config/recipe.h"
#include "core/formats/text/toml.h"
#include "support/files.h"

using namespace ditto;
using test::contains;

namespace {

const std::string kRest =
    "[data]\nplugin = \"webdataset\"\n[model]\nplugin = \"dit_text\"\n[objective]\nplugin = \"diffusion\"\n"
    "[encoder.image]\nplugin = \"identity\"\n";

std::string resolved(const std::string& text, const std::vector<std::string>& sets = {}) {
  return formats::render_toml(Recipe::parse(text, "imagen.toml", sets).resolved());
}

std::string refusal(const std::string& fields, const std::string& rest = kRest) {
  return test::error_of(ErrorKind::config, [&] { Recipe::parse(rest + "[conditioning]\n" + fields, "imagen.toml"); });
}

// base64-500m.yaml
const std::string kCached =
    "embed_dim = 1024\ntoken_length = 128\ndrop_rate = 0.1\nprecached_key = \"embeddings_t5_xxl\"\n"
    "out_key = \"t5_text\"\n";
// base64-500m_online_encoding.yaml, with a place
const std::string kOnline =
    "online_encoding = true\nencoder_path = \"t5\"\nembed_dim = 1024\ntoken_length = 128\ndrop_rate = 0.1\n";

}  // namespace

TEST_CASE("Imagen's UNets are given no null_text, an option that they do not have") {
  for (const std::string model : {"imagen_unet", "imagen_efficient_unet"}) {
    const auto text = resolved(kRest + "[conditioning]\n" + kCached, {"model.plugin=" + model});
    CHECK(contains(text, "plugin = \"" + model + "\""));
    CHECK(!contains(text, "null_text"));
  }
}

TEST_CASE("embeddings that are there are read by their key, and get their places") {
  const std::string said =
      "[data]\nplugin = \"webdataset\"\ntext = \"pickle\"\ntext_key = \"embeddings_t5_xxl\"\ntext_width = 1024\n"
      "text_name = \"t5_text\"\n[model]\nplugin = \"dit_text\"\nnull_text = \"zero\"\n"
      "[objective]\nplugin = \"diffusion\"\ncondition_dropout = 0.0\n[encoder.image]\nplugin = \"identity\"\n"
      "[encoder.conditioning]\nplugin = \"fit_text\"\ntokens = 128\ndrop = 0.1\ntakes = \"t5_text\"\n";
  CHECK(resolved(kRest + "[conditioning]\n" + kCached) == resolved(said));
  CHECK(resolved(kRest + "[conditioning]\n" + kCached + "online_encoding = false\n") == resolved(said));
}

TEST_CASE("captions are encoded by T5, whose texts get their places") {
  const std::string said =
      "[data]\nplugin = \"webdataset\"\n[model]\nplugin = \"dit_text\"\nnull_text = \"zero\"\n"
      "[objective]\nplugin = \"diffusion\"\ncondition_dropout = 0.0\n[encoder.image]\nplugin = \"identity\"\n"
      "[encoder.t5]\nplugin = \"t5\"\nweights = \"t5\"\ntokens = 128\nzero_padding = true\nwidth = 1024\n"
      "[encoder.conditioning]\nplugin = \"fit_text\"\ntokens = 128\ndrop = 0.1\n";
  CHECK(resolved(kRest + "[conditioning]\n" + kOnline) == resolved(said));
}

TEST_CASE("what a recipe says of guidance stands, and a field is set as another option is") {
  const auto own = kRest + "[conditioning]\n" + kCached;
  const auto text =
      resolved(own, {"model.null_text=learned", "objective.condition_dropout=0.2", "conditioning.drop_rate=0.25"});
  CHECK(contains(text, "null_text = \"learned\""));
  CHECK(contains(text, "condition_dropout = 0.2"));
  CHECK(contains(text, "drop = 0.25"));
}

TEST_CASE("a section that contradicts itself or the recipe is refused, with its place") {
  CHECK(
      contains(refusal("token_length = 8\n"), "conditioning.precached_key is not there, and online_encoding is false"));
  CHECK(contains(refusal("token_length = 8\nonline_encoding = true\n"), "conditioning.encoder_path is not there"));
  CHECK(contains(refusal(kOnline + "precached_key = \"t5\"\n"), "is of embeddings that are there"));
  CHECK(contains(refusal(kCached + "encoder_path = \"t5\"\n"), "conditioning.encoder_path is of an encoder"));
  CHECK(contains(refusal("precached_key = \"t5\"\n"), "conditioning.token_length is 0 by default"));
  CHECK(contains(refusal(kCached + "drop_rte = 0.1\n"), "drop_rate"));
  CHECK(contains(refusal(""), "[conditioning] says nothing"));
  const auto beside = refusal(kCached, kRest + "[encoder.conditioning]\nplugin = \"identity\"\n");
  CHECK(contains(beside, "imagen.toml:10:10: encoder.conditioning.plugin stands beside [conditioning]"));
  CHECK(contains(refusal(kCached, "[data]\nplugin = \"webdataset\"\ntext_width = 3\n"),
                 "imagen.toml:3:14: data.text_width stands beside [conditioning], whose embed_dim says it"));
}
