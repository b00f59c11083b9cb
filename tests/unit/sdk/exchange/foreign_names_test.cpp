// The map of names that lists of layers make; and which files of a folder another project's weights are.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <set>

#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <nlohmann/json.hpp>

#include "core/exchange/foreign_folder.h"
#include "support/files.h"

namespace {

struct NamedPart : ditto::Layer {
  NamedPart() : qkv(linear("qkv", 4, 12)), norm(make<ditto::RmsNorm>("norm", 4)) {}
  ditto::Linear qkv;
  std::shared_ptr<ditto::RmsNorm> norm;
};

struct NamedWhole : ditto::Units {
  NamedWhole() {
    linear(ditto::Unit::head, "out", 4, 2);
    for (int64_t i = 0; i < 4; ++i) add_block<NamedPart>(i);
  }
};

const ditto::ForeignTensor& mapped(const ditto::ForeignFormat& format, const std::string& ours) {
  for (const auto& tensor : format.tensors)
    if (tensor.ours == ours) return tensor;
  FAIL(ours);
  return format.tensors.front();
}

using TheirNames = std::vector<std::string>;
using RowNumbers = std::vector<int64_t>;

}  // namespace

TEST_CASE("foreign names: every parameter finds its own, by its block's number; what the model has not is left out") {
  ditto::ForeignNames names{NamedWhole()};
  names.layers("", "Net.", "out=last nobody=nothing");
  names.blocks(2, "blocks.#.", "even.#.", "qkv=q+k+v norm=norm", 0, 2);
  names.blocks(2, "blocks.#.", "odd.#.", "qkv=attn.qkv norm.weight=norm.scale", 1, 2);
  CHECK(names.format.tensors.size() == 2 + 4 * 3);
  CHECK(mapped(names.format, "out.bias").theirs == TheirNames{"Net.last.bias"});
  CHECK(mapped(names.format, "blocks.2.qkv.bias").theirs ==
        TheirNames{"even.1.q.bias", "even.1.k.bias", "even.1.v.bias"});
  CHECK(mapped(names.format, "blocks.2.norm.weight").theirs == TheirNames{"even.1.norm.weight"});
  CHECK(mapped(names.format, "blocks.3.qkv.weight").theirs == TheirNames{"odd.1.attn.qkv.weight"});
  CHECK(mapped(names.format, "blocks.3.norm.weight").theirs == TheirNames{"odd.1.norm.scale"});

  names.shape("blocks.#.qkv", {16, 4});
  names.rows("blocks.#.qkv", {3, 2, 1});
  names.rows("blocks.1.norm", {0});
  CHECK(mapped(names.format, "blocks.0.qkv.weight").shape == RowNumbers{16, 4});
  CHECK(mapped(names.format, "blocks.0.qkv.bias").shape == RowNumbers{16});
  CHECK(mapped(names.format, "blocks.0.qkv.bias").rows == RowNumbers{3, 2, 1});
  CHECK(mapped(names.format, "blocks.1.norm.weight").rows == RowNumbers{0});
  CHECK(mapped(names.format, "blocks.0.norm.weight").rows.empty());
  CHECK(mapped(names.format, "out.weight").rows.empty());

  CHECK(ditto::foreign_name("a=b c=d+e", "c") == "d");
  CHECK(ditto::foreign_name("a=b c=d+e", "c.bias") == "d.bias");
  CHECK(ditto::foreign_name("a=b c=d+e", "d").empty());
  CHECK_THROWS_AS(names.layers("", "", "out"), ditto::Error);
}

TEST_CASE("foreign names: a module's layers are called as the project calls them; pairs of its heads are turned") {
  ditto::ForeignNames names{NamedWhole(), "qkv=to_q+to_k+to_v norm.weight=scale"};
  names.layers("", "", "out=last");
  names.layers("", "", "blocks.0=attn blocks.1.qkv=fused");
  CHECK(names.format.tensors.size() == 2 + 3 + 2);
  CHECK(mapped(names.format, "blocks.0.qkv.bias").theirs ==
        TheirNames{"attn.to_q.bias", "attn.to_k.bias", "attn.to_v.bias"});
  CHECK(mapped(names.format, "blocks.0.norm.weight").theirs == TheirNames{"attn.scale"});
  CHECK(ditto::foreign_name("mlp=ff", "mlp.up.weight", "up=fc1") == "ff.fc1.weight");

  names.turn_pairs("blocks.#", 4);
  CHECK(mapped(names.format, "blocks.0.qkv.weight").rows == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11});
  CHECK(mapped(names.format, "blocks.1.qkv.bias").rows == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11});
  CHECK(mapped(names.format, "blocks.0.norm.weight").rows.empty());
  CHECK(mapped(names.format, "out.weight").rows.empty());
}

TEST_CASE(
    "foreign rows: pairs that lie side by side there lie half a head apart here; groups of heads lie together there") {
  CHECK(ditto::foreign_rows({{0, 8, 4}, {8, 2}}) == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9});
  CHECK(ditto::megatron_rows({2, 1, 1}, 2, 2) == RowNumbers{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15});
}

TEST_CASE("of several sets of weights in a folder that is taken which diffusers or transformers take, or none") {
  const auto golden_choices =
      nlohmann::json::parse(ditto::test::read_text(DITTO_SOURCE_DIR "/tests/golden/weights/choices.json"));
  int taken = 0, refused = 0;
  for (const auto& choice : golden_choices.at("choices")) {
    const ditto::test::TemporaryFolder folder;
    const std::vector<std::string> sets = choice.at("sets");
    std::set<std::string> references;
    for (const char* program : {"diffusers", "transformers"})
      if (choice.at(program).is_string()) references.insert(choice.at(program).get<std::string>());
    for (const auto& set : sets) {
      const std::vector<std::string> parts = golden_choices.at("parts").at(set);
      nlohmann::json map;
      for (const auto& part : parts) ditto::test::write_text(folder / part, "x"), map["in " + part] = part;
      ditto::test::write_text(folder / set, parts.empty() ? "x" : nlohmann::json{{"weight_map", map}}.dump());
    }
    CAPTURE(choice.dump());
    std::string found;
    const auto error = ditto::test::error_of(ditto::ErrorKind::checkpoint, [&] {
      const auto place = ditto::checkpoint::find_foreign_weights(folder.path());
      found = std::filesystem::path(place.file).filename();
      for (const auto& set : sets)  // what is not read is said
        CHECK((set == found) == (std::find(place.not_read.begin(), place.not_read.end(), set) == place.not_read.end()));
      CHECK(ditto::test::contains(ditto::checkpoint::reading_of(folder.path(), place), found));
    });
    (found.empty() ? refused : taken) += 1;
    for (const auto& set : sets)
      if (found.empty()) CHECK_MESSAGE(ditto::test::contains(error, set), error);
    if (!found.empty() && !references.empty()) CHECK(references == std::set<std::string>{found});
    // The two differ in which of a file and an index they take.
    const auto has = [&](const std::string& name) { return std::find(sets.begin(), sets.end(), name) != sets.end(); };
    const bool is_open =
        std::any_of(sets.begin(), sets.end(), [&](const auto& set) { return has(set + ".index.json"); });
    if (references.size() == 1 && !is_open) CHECK(!found.empty());
  }
  CHECK(taken >= 30);
  CHECK(refused >= 12);
}

TEST_CASE(
    "an index that lists the file beside it is of one set with it; a link that leads nowhere is no reason for "
    "another") {
  const ditto::test::TemporaryFolder folder;
  const std::string index = "diffusion_pytorch_model.safetensors.index.json",
                    file = "diffusion_pytorch_model.safetensors";
  ditto::test::write_text(folder / file, "x");
  ditto::test::write_text(folder / index, R"({"weight_map": {"a": "diffusion_pytorch_model.safetensors"}})");
  CHECK(ditto::checkpoint::foreign_weights(folder.path()) == folder / index);
  std::filesystem::remove(folder / index);
  std::filesystem::remove(folder / file);
  std::filesystem::create_symlink("blobs/never-fetched", folder / file);
  ditto::test::write_text(folder / "diffusion_pytorch_model.bin", "x");
  CHECK(ditto::checkpoint::foreign_weights(folder.path()) == folder / file);
}

TEST_CASE("a pipeline's weights are its transformer's, where no others lie beside it") {
  const ditto::test::TemporaryFolder folder;
  const auto put = [&](const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(folder / path).parent_path());
    ditto::test::write_text(folder / path, "x");
  };
  const auto refusal = [&] {
    return ditto::test::error_of(ditto::ErrorKind::checkpoint,
                                 [&] { ditto::checkpoint::foreign_weights(folder.path()); });
  };
  put("vae/diffusion_pytorch_model.safetensors");
  put("unet/diffusion_pytorch_model.bin");
  put("text_encoder/model.safetensors");
  put("scheduler/scheduler_config.json");
  CHECK(ditto::test::contains(refusal(), "it has text_encoder/, unet/, vae/; name the one that is meant"));
  put("transformer/diffusion_pytorch_model.safetensors");
  CHECK(ditto::checkpoint::foreign_weights(folder.path()) ==
        folder / "transformer/diffusion_pytorch_model.safetensors");
  for (const std::string other :
       {"transformer_2/diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors",
        "transformer_ema/diffusion_pytorch_model.bin", "model.safetensors.index.json"}) {
    put(other);
    const auto error = refusal();
    CHECK_MESSAGE(ditto::test::contains(error, "has two sets of weights"), error);
    std::filesystem::remove(folder / other);
  }
  put("transformer/diffusion_pytorch_model.safetensors.index.json");
  CHECK(!refusal().empty());
}

TEST_CASE("of a pipeline's folders a plugin's own is that whose config.json names its class") {
  const ditto::test::TemporaryFolder folder;
  const auto put = [&](const std::string& name, const std::string& config) {
    std::filesystem::create_directories(folder / name);
    ditto::test::write_text(folder / (name + "/model.safetensors"), "x");
    if (!config.empty()) ditto::test::write_text(folder / (name + "/config.json"), config);
  };
  const auto found = [](const std::string& path, const std::vector<std::string>& classes) {
    return ditto::checkpoint::find_foreign_weights(path, classes).file;
  };
  const auto refusal = [&](const std::string& path, const std::vector<std::string>& classes) {
    return ditto::test::error_of(ditto::ErrorKind::checkpoint, [&] { found(path, classes); });
  };
  put("vae", R"({"_class_name": "AutoencoderKL"})");
  put("unet", R"({"_class_name": "UNet2DConditionModel"})");
  put("text_encoder", R"({"architectures": ["CLIPTextModelWithProjection"]})");
  put("text_encoder_2", R"({"architectures": ["CLIPTextModelWithProjection"]})");
  put("text_encoder_3", R"({"architectures": ["T5EncoderModel"]})");
  put("transformer", "");
  CHECK(found(folder.path(), {"AutoencoderKL"}) == folder / "vae/model.safetensors");
  CHECK(found(folder.path(), {"UNet2DConditionModel"}) == folder / "unet/model.safetensors");
  CHECK(found(folder.path(), {"T5ForConditionalGeneration", "T5EncoderModel"}) ==
        folder / "text_encoder_3/model.safetensors");
  CHECK(found(folder.path(), {}) == folder / "transformer/model.safetensors");
  const std::vector<std::string> clip{"CLIPTextModel", "CLIPTextModelWithProjection"};
  const auto two = refusal(folder.path(), clip);
  CHECK(ditto::test::contains(two, "in two folders, text_encoder/ and "));
  CHECK(ditto::test::contains(two, "text_encoder_2/"));
  CHECK(found(folder / "text_encoder_2", clip) == folder / "text_encoder_2/model.safetensors");
  CHECK(ditto::test::contains(refusal(folder.path(), {"BertModel"}), "is a folder without"));
  // Where one is named, its config.json may say nothing, but nothing else.
  CHECK(found(folder / "transformer", clip) == folder / "transformer/model.safetensors");
  for (const std::string named : {"vae", "vae/model.safetensors"})
    CHECK(ditto::test::contains(refusal(folder / named, clip),
                                "vae/config.json: says that the weights are of AutoencoderKL, "
                                "expected one of: CLIPTextModel, CLIPTextModelWithProjection"));
}
