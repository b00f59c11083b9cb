// Weights in other projects' files, in and out; the files were written by PyTorch and safetensors in Python
// (tests/golden/checkpoint/make.py).
#include "core/exchange/foreign.h"
#include "core/exchange/foreign_folder.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "core/checkpoint/tensor_file.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace checkpoint = ditto::checkpoint;
using checkpoint::Which;
using ditto::ErrorKind;
using ditto::Init;
using torch::Tensor;
using namespace ditto::test;

namespace {

std::string golden(const std::string& name) { return DITTO_SOURCE_DIR "/tests/golden/checkpoint/" + name; }

// make.py's formula.
Tensor value(const std::string& name, std::vector<int64_t> shape, double add = 0) {
  const int64_t sum = std::accumulate(name.begin(), name.end(), int64_t{0});
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return ((torch::arange(count) * 7 + sum).to(torch::kDouble) / 16 + add).to(torch::kFloat).view(shape);
}

Tensor positions() { return torch::sin(torch::arange(8, torch::kDouble)).to(torch::kFloat).view({1, 2, 4}); }

// A fused projection, a patch embedding that is a convolution there, a table that is kept twice there.
class SmallModel final : public ditto::Model {
 public:
  explicit SmallModel(int64_t rows = 5) {
    patch = add<Table>(ditto::Unit::tokens, "patch", std::vector<int64_t>{4, 12}, std::vector<int64_t>{4});
    qkv = add<Table>(ditto::Unit::head, "qkv", std::vector<int64_t>{12, 4});
    table = add<Table>(ditto::Unit::condition, "table", std::vector<int64_t>{rows, 4});
    format = {{{"patch.weight", {"proj.weight"}, {4, 3, 2, 2}},
               {"patch.bias", {"proj.bias"}, {}},
               {"qkv.weight", {"attn.q.weight", "attn.k.weight", "attn.v.weight"}, {}},
               {"table.weight", {"blocks.0.emb.weight"}, {}}},
              {{"blocks.1.emb.weight", "blocks.0.emb.weight"}},
              {{"pos_embed", positions()}}};
    for (auto& parameter : parameters()) parameter.detach().fill_(-1);
  }
  ditto::Conditioning condition(const ditto::Batch&, ditto::Context&) override { return {}; }
  ditto::Stream tokens(const ditto::Batch&, ditto::Context&) override { return {}; }
  int64_t depth() const override { return 0; }
  ditto::Stream run_block(int64_t, ditto::Stream stream, ditto::Context&) override { return stream; }
  Tensor head(const ditto::Stream& stream, ditto::Context&) override { return stream.x_BTD; }
  ditto::TensorSpecs takes() const override { return {}; }
  ditto::ForeignFormat foreign(const std::string& name) const override {
    return name == "other" || name == "opendit" ? format : Model::foreign(name);
  }
  std::vector<std::string> foreign_formats() const override { return {"other"}; }

  bool untouched() {
    for (const auto& parameter : parameters())
      if (!(parameter.detach() == -1).all().item<bool>()) return false;
    return true;
  }
  // Equal to make.py's values plus `add`.
  void check_values(double add) {
    CHECK(torch::equal(patch->weight.leaf().detach(), value("proj.weight", {4, 12}, add)));
    CHECK(torch::equal(patch->bias.leaf().detach(), value("proj.bias", {4}, add)));
    const auto parts = qkv->weight.leaf().detach().chunk(3);
    const char* names[] = {"attn.q.weight", "attn.k.weight", "attn.v.weight"};
    for (size_t i = 0; i < 3; ++i) CHECK(torch::equal(parts[i], value(names[i], {4, 4}, add)));
    CHECK(torch::equal(table->weight.leaf().detach(), value("blocks.0.emb.weight", {5, 4}, add)));
  }

  struct Table : ditto::Module {
    explicit Table(std::vector<int64_t> shape, std::vector<int64_t> bias_shape = {})
        : weight(parameter("weight", std::move(shape), Init::zeros())) {
      if (!bias_shape.empty()) bias = parameter("bias", std::move(bias_shape), Init::zeros());
    }
    ditto::Parameter weight, bias;
  };
  std::shared_ptr<Table> patch, qkv, table;
  ditto::ForeignFormat format;
};

ditto::NamedTensors foreign_tensors() { return ditto::read_tensors(golden("foreign.safetensors")); }

// The error of importing these tensors; the model must stay as it was.
std::string import_error(const ditto::NamedTensors& tensors) {
  const TemporaryFolder folder;
  ditto::write_tensors(folder / "x.safetensors", tensors);
  SmallModel model;
  const std::string error =
      error_of(ErrorKind::checkpoint, [&] { checkpoint::import_weights(model, "other", folder / "x.safetensors"); });
  CHECK(model.untouched());
  CHECK(contains(error, folder / "x.safetensors"));
  return error;
}

}  // namespace

TEST_CASE("PyTorch's and safetensors' files come in with the same numbers, whatever their nesting") {
  for (const char* file : {"foreign.safetensors", "foreign_flat.pt"}) {
    SmallModel model;
    CHECK(checkpoint::import_weights(model, "other", golden(file)).empty());
    model.check_values(0);
  }
  SmallModel model;
  CHECK(checkpoint::import_weights(model, "other", golden("foreign_nested.pt")) == "ema");
  model.check_values(0.5);
  CHECK(checkpoint::import_weights(model, "other", golden("foreign_nested.pt"), Which::weights) == "model");
  model.check_values(0);
  CHECK(checkpoint::import_weights(model, "other", golden("foreign_nested.pt"), Which::ema) == "ema");
  model.check_values(0.5);
}

TEST_CASE("a wrapper's prefix and half precision come in") {
  SmallModel model;
  CHECK(checkpoint::import_weights(model, "other", golden("foreign_wrapped_half.pt")).empty());
  CHECK(torch::equal(model.qkv->weight.leaf().detach().chunk(3)[1],
                     value("attn.k.weight", {4, 4}).to(torch::kHalf).to(torch::kFloat)));
}

TEST_CASE("what goes out is what came in, bit for bit") {
  const TemporaryFolder folder;
  SmallModel model;
  checkpoint::import_weights(model, "other", golden("foreign.safetensors"));
  checkpoint::export_weights(model, "other", folder / "out.safetensors", {{"ditto_step", "600"}});
  const auto out = ditto::read_tensors(folder / "out.safetensors"), in = foreign_tensors();
  CHECK(out.size() == in.size());
  for (const auto& [name, tensor] : in) {
    REQUIRE(out.count(name) == 1);
    CHECK(same_bits(out.at(name), tensor));
  }
  const auto file = ditto::formats::SafetensorsReader::open(folder / "out.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.metadata().at("ditto_step") == "600");
}

TEST_CASE("names and shapes of each set are known before there is a model") {
  const std::vector<int64_t> q{4, 4}, table{5, 4};
  for (const char* name : {"foreign.safetensors", "foreign_flat.pt", "foreign_nested.pt", "foreign_wrapped_half.pt"}) {
    CAPTURE(name);
    const auto found = checkpoint::look_at_weights(golden(name), "other").shapes;
    CHECK(found.tensors.at("attn.q.weight") == q);
    CHECK(found.tensors.at("blocks.1.emb.weight") == table);
    CHECK(found.config_file.empty());
  }
  CHECK(checkpoint::look_at_weights(golden("foreign_nested.pt"), "other", Which::weights).shapes.has("attn.q.weight"));
}

TEST_CASE("an export into a folder has its configurations, and replaces no others") {
  const TemporaryFolder folder;
  SmallModel model;
  checkpoint::import_weights(model, "other", golden("foreign.safetensors"));
  const auto refusal = [&](const std::string& out, const ditto::ForeignConfig& scheduler = {}) {
    return error_of(ErrorKind::config, [&] { checkpoint::export_weights(model, "other", out, {}, scheduler); });
  };
  CHECK(contains(refusal(folder / "none"), "is a folder, and weights of this format are one file"));
  CHECK(!std::filesystem::exists(folder / "none"));

  model.format.config = {{"depth", int64_t{2}}, {"eps", 1e-5}, {"kind", "a \"b\""}, {"bias", true}};
  const ditto::ForeignConfig scheduler{{"steps", int64_t{1000}}};
  checkpoint::export_weights(model, "other", folder / "f", {}, scheduler);
  checkpoint::export_weights(model, "other", folder / "f", {}, scheduler);  // the same again
  const auto found = checkpoint::look_at_weights(folder / "f", "other").shapes;
  CHECK((found.config == model.format.config));
  CHECK(found.config_file == folder / "f/config.json");
  SmallModel again;
  checkpoint::import_weights(again, "other", folder / "f");
  again.check_values(0);

  CHECK(contains(refusal(folder / "f", {{"steps", int64_t{999}}}), "f/scheduler_config.json: is there, of another"));
  CHECK(contains(refusal(folder / "f"), "f/scheduler_config.json: is there, of another"));  // and none is ours
  model.format.config["depth"] = int64_t{3};
  CHECK(contains(refusal(folder / "f", scheduler), "f/config.json: is there, of another"));
  CHECK(contains(refusal(folder / "f/x.safetensors", scheduler), "f/config.json: is there, of another"));
}

TEST_CASE("an imported model is a checkpoint like any other") {
  const TemporaryFolder folder;
  const auto first = std::make_shared<SmallModel>(), second = std::make_shared<SmallModel>();
  SmallModel &model = *first, &again = *second;
  checkpoint::import_weights(model, "other", golden("foreign_flat.pt"));
  auto layout = ditto::Layout::of(model);
  checkpoint::save_weights(folder / "c", layout, "[model]\n", {{"imported_from", "foreign_flat.pt"}});
  CHECK(checkpoint::verify(folder / "c").empty());
  auto other = ditto::Layout::of(again);
  checkpoint::load_weights(*checkpoint::resolve(folder / "c").path, other, Which::ema_or_weights);
  again.check_values(0);
  CHECK(checkpoint::describe(folder / "c").recipe_toml == "[model]\n");
}

TEST_CASE("a file that is not this model's is refused by the names of its tensors") {
  auto tensors = foreign_tensors();
  tensors["attn.q.weight"] = torch::zeros({8, 4});
  CHECK(contains(import_error(tensors), "tensor 'attn.q.weight' is [8, 4] there and [4, 4] here"));
  tensors = foreign_tensors();
  tensors.erase("attn.v.weight");
  CHECK(contains(import_error(tensors), "tensor 'attn.v.weight' is missing"));
  tensors = foreign_tensors();
  tensors["attn.bias"] = torch::zeros({4});
  CHECK(contains(import_error(tensors), "tensor 'attn.bias' has no place in this model"));
  tensors = foreign_tensors();
  tensors["blocks.1.emb.weight"][2][3] += 1e-3;
  CHECK(contains(import_error(tensors), "tensor 'blocks.1.emb.weight' differs from 'blocks.0.emb.weight'"));
  tensors = foreign_tensors();
  tensors["pos_embed"][0][1][2] += 1e-3;
  CHECK(contains(import_error(tensors), "tensor 'pos_embed' is a fixed table, and differs from this model's by 0.001"));
  tensors["pos_embed"] = torch::full({1, 2, 4}, std::nan(""));
  CHECK(contains(import_error(tensors), "tensor 'pos_embed' is a fixed table"));
  CHECK(contains(import_error({{"proj.wieght", torch::zeros({4})}}), "(the nearest name is 'proj.wieght')"));
  CHECK(contains(import_error({}), "it holds no tensors"));
  tensors = {};
  for (const char* name : {"proj.weight", "x1", "x2", "x3", "x4"}) tensors[name] = torch::zeros({4});
  const auto error = import_error(tensors);  // five of a kind are named
  for (const char* part : {"tensor 'proj.weight' is [4] there and [4, 3, 2, 2] here",
                           "tensor 'attn.k.weight' is missing", "tensor 'x4' has no place", ", and 1 more"})
    CHECK_MESSAGE(contains(error, part), error);
}

TEST_CASE("what a format's program saves with the model is left out by its names, and counted, and nothing else is") {
  const TemporaryFolder folder;
  auto tensors = foreign_tensors();
  const std::string clip = "y_embedder.text_encoder.";
  tensors[clip + "places"] = torch::arange(7);  // of a type that no weight has
  tensors[clip + "0.weight"] = torch::zeros({3});
  ditto::write_tensors(folder / "in.safetensors", tensors);
  const auto found = checkpoint::look_at_weights(folder / "in.safetensors", "opendit");
  CHECK(found.others == std::map<std::string, int64_t>{{"the frozen text encoder (" + clip + "*)", 2}});
  CHECK(found.shapes.tensors.size() == foreign_tensors().size());
  SmallModel model;
  checkpoint::import_weights(model, "opendit", folder / "in.safetensors");
  model.check_values(0);
  CHECK(contains(import_error(tensors), "tensor '" + clip + "0.weight' has no place in this model"));

  tensors["y_embedder.text_encoders.weight"] = torch::zeros({3});
  ditto::write_tensors(folder / "more.safetensors", tensors);
  SmallModel again;
  const auto error = error_of(ErrorKind::checkpoint,
                              [&] { checkpoint::import_weights(again, "opendit", folder / "more.safetensors"); });
  CHECK(contains(error, "tensor 'y_embedder.text_encoders.weight' has no place in this model"));
  CHECK(!contains(error, clip));
  CHECK(again.untouched());
}

TEST_CASE("a tensor that is renamed, transposed or of a type with scales is refused by its names") {
  auto tensors = foreign_tensors();
  tensors["attn.out.weight"] = tensors.at("attn.q.weight");
  tensors.erase("attn.q.weight");
  const auto renamed = import_error(tensors);
  CHECK(contains(renamed, "tensor 'attn.q.weight' is missing"));
  CHECK(contains(renamed, "tensor 'attn.out.weight' has no place in this model"));
  tensors = foreign_tensors();
  tensors["blocks.0.emb.weight"] = tensors.at("blocks.0.emb.weight").t().contiguous();
  tensors["blocks.1.emb.weight"] = tensors.at("blocks.0.emb.weight");
  CHECK(contains(import_error(tensors), "tensor 'blocks.0.emb.weight' is [4, 5] there and [5, 4] here, transposed"));
  tensors = foreign_tensors();
  tensors["proj.bias"] = tensors.at("proj.bias").to(torch::kFloat8_e4m3fn);
  CHECK(contains(import_error(tensors), "tensor 'proj.bias' is of F8_E4M3 there, whose scales lie elsewhere"));
}

TEST_CASE("rows of theirs that lie in another order, or are parts of one weight, come in and go out") {
  const TemporaryFolder folder;
  auto in = foreign_tensors();
  // Rows of query and key alternate there over two weights; the value's are the reverse of ours.
  const auto q = in.at("attn.q.weight"), k = in.at("attn.k.weight"), v = in.at("attn.v.weight");
  for (const char* name : {"attn.q.weight", "attn.k.weight", "attn.v.weight"}) in.erase(name);
  const auto qk = torch::stack({q, k}, 1).reshape({2, 4, 4});
  in["attn.qk.0"] = qk[0];
  in["attn.qk.1"] = qk[1];
  in["attn.v"] = v.flip(0).contiguous();
  ditto::write_tensors(folder / "in.safetensors", in);
  SmallModel model;
  auto& map = model.format.tensors[2];
  REQUIRE(map.ours == "qkv.weight");
  map = {"qkv.weight", {"attn.qk.0", "attn.qk.1", "attn.v"}, {4, 4}, {0, 2, 4, 6, 1, 3, 5, 7, 11, 10, 9, 8}};
  checkpoint::import_weights(model, "other", folder / "in.safetensors");
  model.check_values(0);
  checkpoint::export_weights(model, "other", folder / "out.safetensors");
  const auto out = ditto::read_tensors(folder / "out.safetensors");
  CHECK(out.size() == in.size());
  for (const auto& [name, tensor] : in) CHECK_MESSAGE(same_bits(out.at(name), tensor), name);
}

TEST_CASE("one weight of theirs is several of ours, and every row is one of them") {
  const TemporaryFolder folder;
  auto in = foreign_tensors();
  SmallModel model(4);
  model.format = {{{"patch.weight", {"proj.weight"}, {4, 3, 2, 2}},
                   {"patch.bias", {"proj.bias"}, {}},
                   {"qkv.weight", {"linear1"}, {16, 4}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
                   {"table.weight", {"linear1"}, {16, 4}, {3, 2, 1, 0}}},
                  {},
                  {}};
  const auto fused = torch::arange(64, torch::kFloat).view({16, 4});
  const ditto::NamedTensors theirs{
      {"proj.weight", in.at("proj.weight")}, {"proj.bias", in.at("proj.bias")}, {"linear1", fused}};
  ditto::write_tensors(folder / "in.safetensors", theirs);
  checkpoint::import_weights(model, "other", folder / "in.safetensors");
  CHECK(torch::equal(model.qkv->weight.leaf().detach(), fused.narrow(0, 4, 12)));
  CHECK(torch::equal(model.table->weight.leaf().detach(), fused.narrow(0, 0, 4).flip(0)));
  checkpoint::export_weights(model, "other", folder / "out.safetensors");
  CHECK(same_bits(ditto::read_tensors(folder / "out.safetensors").at("linear1"), fused));
  for (const auto& rows : std::vector<std::vector<int64_t>>{{3, 2, 1, 4}, {3, 2, 1, 1}, {3, 2, 1}, {3, 2, 1, 16}}) {
    model.format.tensors[3].rows = rows;
    CHECK(contains(
        error_of(ErrorKind::plugin, [&] { checkpoint::export_weights(model, "other", folder / "x.safetensors"); }),
        "rows"));
  }
}

TEST_CASE("an export of several files is read by its index, and in half precision it keeps the bits that came in") {
  const TemporaryFolder folder;
  SmallModel model;
  model.format.config = {{"depth", int64_t{2}}};
  checkpoint::import_weights(model, "other", golden("foreign_wrapped_half.pt"));
  checkpoint::ExportForm form;
  form.most_bytes = 100;
  form.dtype = torch::kHalf;
  CHECK(checkpoint::export_weights(model, "other", folder / "f", {{"a", "note"}}, {}, form) == folder / "f/README.md");
  const auto index = read_text(folder / "f/diffusion_pytorch_model.safetensors.index.json");
  CHECK(contains(index, "\"total_size\": 296"));
  CHECK(std::filesystem::exists(folder / "f/diffusion_pytorch_model-00001-of-00004.safetensors"));
  SmallModel again;
  checkpoint::import_weights(again, "other", folder / "f");
  for (const auto& item : model.named_parameters())
    CHECK(torch::equal(item.value().detach(), again.named_parameters()[item.key()].detach()));
  CHECK(checkpoint::look_at_weights(folder / "f", "other").notes.at("a") == "note");
  const auto refused = [&](uint64_t most_bytes) {
    form.most_bytes = most_bytes;
    return error_of(ErrorKind::config, [&] { checkpoint::export_weights(model, "other", folder / "f", {}, {}, form); });
  };
  CHECK(contains(refused(0), "index.json: is there, and would be read in the place of these weights"));
}

TEST_CASE("what a configuration says beyond the model is kept for the next export") {
  const TemporaryFolder folder;
  SmallModel model;
  checkpoint::import_weights(model, "other", golden("foreign.safetensors"));
  const std::vector<int64_t> patch{1, 2, 2};
  model.format.config = {{"depth", int64_t{2}}, {"patch", patch}, {"out", int64_t{4}}, {"new", true}};
  checkpoint::export_weights(model, "other", folder / "f");
  auto found = checkpoint::look_at_weights(folder / "f", "other");
  CHECK((found.shapes.config.at("patch") == ditto::OptionValue(patch)));
  CHECK(found.shapes.numbers("patch", 3, 8) == patch);
  CHECK(
      contains(error_of(ErrorKind::checkpoint, [&] { found.shapes.numbers("patch", 2, 8); }), "a list of 2 integers"));
  checkpoint::ExportForm form;
  form.kept_config = R"({"depth": 1, "patch": [1, 2, 2], "out": null, "axes": [[1], {"a": null}], "version": "0.1"})";
  checkpoint::export_weights(model, "other", folder / "g", {}, {}, form);
  CHECK(nlohmann::json::parse(read_text(folder / "g/config.json")) ==
        nlohmann::json::parse(
            R"({"depth": 2, "patch": [1, 2, 2], "out": null, "axes": [[1], {"a": null}], "version": "0.1"})"));
}

TEST_CASE("a denoiser beside its encoders in one file comes in alone, and the others are counted") {
  const TemporaryFolder folder;
  ditto::NamedTensors all{{"first_stage_model.a", torch::zeros({2})}, {"first_stage_model.b", torch::zeros({2})}};
  for (const auto& [name, tensor] : foreign_tensors()) all["model.diffusion_model." + name] = tensor;
  ditto::write_tensors(folder / "all.safetensors", all);
  SmallModel model;
  CHECK(checkpoint::import_weights(model, "other", folder / "all.safetensors").empty());
  model.check_values(0);
  const auto found = checkpoint::look_at_weights(folder / "all.safetensors", "other");
  CHECK(found.others == std::map<std::string, int64_t>{{"first_stage_model", 2}});
  CHECK(found.shapes.has("attn.q.weight"));
  const auto autoencoder = checkpoint::look_at_weights(folder / "all.safetensors", "other", {}, {"AutoencoderKL"});
  CHECK(autoencoder.shapes.tensors.size() == 2);
  CHECK(autoencoder.shapes.has("b"));
  CHECK(autoencoder.others == std::map<std::string, int64_t>{{"model", int64_t(foreign_tensors().size())}});
}

TEST_CASE("an index may name files of PyTorch's") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "f");
  std::filesystem::copy(golden("foreign_flat.pt"), folder / "f/pytorch_model-00001-of-00001.bin");
  nlohmann::json map;
  for (const auto& [name, tensor] : foreign_tensors()) map[name] = "pytorch_model-00001-of-00001.bin";
  write_text(folder / "f/pytorch_model.bin.index.json", nlohmann::json{{"weight_map", map}}.dump());
  SmallModel model;
  checkpoint::import_weights(model, "other", folder / "f");
  model.check_values(0);
}

TEST_CASE("a set of weights that the file has not is refused") {
  SmallModel model;
  const auto error = [&](const std::string& file, Which which) {
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::import_weights(model, "other", file, which); });
  };
  CHECK(contains(error(golden("foreign_flat.pt"), Which::ema), "has no EMA in it"));
  CHECK(contains(error(golden("make.py"), Which::weights), golden("make.py")));
  CHECK(contains(error(golden("nowhere.pt"), Which::weights), "No such file"));
  CHECK(model.untouched());
}

TEST_CASE("a format or a name map that does not fit the model is refused") {
  const TemporaryFolder folder;
  SmallModel model;
  const auto plugin_error = [&] {
    return error_of(ErrorKind::plugin, [&] { checkpoint::export_weights(model, "other", folder / "out.safetensors"); });
  };
  CHECK(contains(error_of(ErrorKind::config, [&] { checkpoint::export_weights(model, "nobody", folder / "out"); }),
                 "it has: other"));
  model.format.tensors.pop_back();
  CHECK(contains(plugin_error(), "lacks 'table.weight'"));
  model.format.tensors.push_back({"tabel.weight", {"x"}, {}});
  CHECK(contains(plugin_error(), "names 'tabel.weight', which is no parameter"));
  model.format.tensors.back() = {"qkv.weight", {"x"}, {}};
  CHECK(contains(plugin_error(), "maps 'qkv.weight' to nothing, or twice"));
  model.format.tensors.back() = {"table.weight", {"blocks.0.emb.weight"}, {3, 4}};
  CHECK(contains(plugin_error(),
                 "gives 'blocks.0.emb.weight' a shape or rows that do not make 'table.weight' of [5, 4]"));
  CHECK(!std::filesystem::exists(folder / "out.safetensors"));
}
