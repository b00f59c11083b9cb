// dit_text, pixart, st_dit and dit_moe against other definitions of the same functions: diffusers' PixArt, diffusers'
// DiT with transformers' Switch layers, and plain PyTorch where nobody has the combination. The values are made by
// transformers/make.py.
//
// Claim (numbers): `pixart` and `dit_moe` are diffusers' PixArt and DiT with transformers' Switch MLP, in outputs
// and gradients.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <ditto/testing/checks.h>
#include <support/golden.h>
#include <support/open_plugin.h>

namespace fs = std::filesystem;
using ditto::Batch;
using ditto::Model;
using ditto::OptionValue;
using ditto::test::values;
using ditto::testing::model_needs;
using nlohmann::json;
using torch::Tensor;

namespace {

struct Case {
  json golden, spec;
  std::string name;

  explicit Case(const fs::path& path) : name(path.stem()) {
    golden = json::parse(std::ifstream(path));
    spec = golden.at("case");
  }

  std::vector<int64_t> list(const char* key) const { return spec.at(key).get<std::vector<int64_t>>(); }

  std::shared_ptr<Model> model(at::ScalarType dtype) const {
    std::map<std::string, OptionValue> options;
    for (const auto& [key, value] : spec.at("options").items())
      if (value.is_boolean())
        options[key] = value.get<bool>();
      else if (value.is_string())
        options[key] = value.get<std::string>();
      else if (value.is_number_float())
        options[key] = value.get<double>();
      else
        options[key] = value.get<int64_t>();
    auto made = ditto::test::make_plugin<Model>(
        "models", spec.at("model").get<std::string>(), options,
        model_needs(list("x"), spec.at("out_channels").get<int64_t>(), spec.at("classes").get<int64_t>(),
                    spec.at("text_width").get<int64_t>()));
    made->to(dtype);
    const torch::NoGradGuard no_grad;
    for (auto& item : made->named_parameters()) {
      const auto shape = item.value().sizes().vec();
      const double bound = item.key() == "label.table" ? 1
                           : shape.size() == 1         ? 0.25
                                                       : std::sqrt(3.0 / static_cast<double>(shape.back()));
      item.value().copy_(values(item.key(), shape, bound));
    }
    return made;
  }

  Batch batch(at::ScalarType dtype) const {
    const auto times = spec.at("t").get<std::vector<double>>();
    const auto samples = static_cast<int64_t>(times.size());
    auto shape = list("x");
    shape.insert(shape.begin(), samples);
    Batch in;
    in["x"] = values("x", shape, 1.75).to(dtype);
    in["t"] = torch::tensor(times, torch::kFloat);
    if (spec.contains("label")) in["label"] = torch::tensor(list("label"), torch::kLong);
    if (spec.contains("text_lengths")) {
      const auto lengths = torch::tensor(list("text_lengths"), torch::kLong);
      const int64_t longest = lengths.max().item<int64_t>();
      in["text"] = values("text", {samples, longest, spec.at("text_width").get<int64_t>()}, 1.75).to(dtype);
      in["text_mask"] = torch::arange(longest).lt(lengths.unsqueeze(1));
    }
    shape[1] = spec.at("out_channels").get<int64_t>();
    in["grad_output"] = values("grad_output", shape, 1.75).to(dtype);
    return in;
  }
};

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const auto& file : fs::directory_iterator(DITTO_SOURCE_DIR "/tests/golden/transformers"))
    if (file.path().extension() == ".json") found.emplace_back(file.path());
  CHECK(found.size() == 6);
  return found;
}

void compare(const Case& test, at::ScalarType dtype, double tolerance) {
  const auto model = test.model(dtype);
  const auto in = test.batch(dtype);
  const auto made = ditto::test::predict(*model, in, dtype);
  auto loss = (made.prediction * in.at("grad_output")).sum();

  const auto& golden = test.golden.at("tensors");
  size_t seen = 0;
  double worst = 0;
  const auto check = [&](const std::string& name, const Tensor& tensor) {
    REQUIRE_MESSAGE(golden.contains(name), test.name << ": " << name);
    REQUIRE_MESSAGE(tensor.defined(), test.name << ": " << name);
    const double d = ditto::test::distance(name, golden.at(name), tensor);
    CHECK_MESSAGE(d <= tolerance, test.name << ": " << name << " differs by " << d);
    worst = std::max(worst, d);
    ++seen;
  };
  check("prediction", made.prediction);
  for (const auto& [name, loss_B] : made.stream.auxiliary_losses) {
    check(name, loss_B);
    loss = loss + loss_B.sum();
  }
  loss.backward();
  for (const auto& item : model->named_parameters()) check(item.key(), item.value().grad());
  CHECK(seen == golden.size());
  MESSAGE(test.name << (dtype == torch::kDouble ? ", fp64: " : ", fp32: ") << seen << " tensors, largest difference "
                    << worst);
}

int64_t parameters(const char* model, const char* preset, const ditto::ModelNeeds& needs) {
  int64_t count = 0;
  for (const auto& one :
       ditto::test::make_plugin<Model>("models", model, {{"preset", std::string(preset)}}, needs)->parameters())
    count += one.numel();
  return count;
}

}  // namespace

TEST_CASE("pixart: PixArt-XL/2 has the parameters of diffusers' default PixArt for pictures of 256, and a null text") {
  CHECK(parameters("pixart", "PixArt-XL/2", model_needs({4, 32, 32}, 8, 0, 4096)) == 610'856'096 + 4096);
}

TEST_CASE("latte: Latte-XL/2 without classes has the published 673.68 million parameters") {
  CHECK(parameters("latte", "Latte-XL/2", model_needs({4, 16, 32, 32}, 8)) == 673'681'568);
}

TEST_CASE("dit_moe: a preset has DiT's sizes, and experts in the place of each MLP") {
  const int64_t depth = 12, width = 384, experts = 8, mlp = 8 * width * width + 5 * width;
  CHECK(parameters("dit_moe", "S/2", model_needs({4, 32, 32}, 8, 1000)) ==
        32'963'360 - 16 * 16 * width + depth * ((experts - 1) * mlp + experts * (width + 1)));
}

TEST_CASE("dit_text, pixart, st_dit, dit_moe: outputs and every gradient are those of other definitions") {
  for (const Case& test : cases()) compare(test, torch::kFloat, 1e-5);
}

TEST_CASE("dit_text, st_dit, dit_moe: in double precision to the last digits") {
  for (const Case& test : cases()) compare(test, torch::kDouble, 1e-12);
}

TEST_CASE(
    "dit_moe: the picks it tells, given back in the batch, are used and change no bit; others change the result") {
  for (const Case& test : cases()) {
    if (test.spec.at("model") != "dit_moe") continue;
    CAPTURE(test.name);
    const torch::NoGradGuard no_grad;
    const auto model = test.model(torch::kFloat);
    auto in = test.batch(torch::kFloat);
    std::map<std::string, Tensor> told;
    const auto own = ditto::test::predict(*model, in, torch::kFloat,
                                          [&](const std::string& name, const Tensor& picks) { told[name] = picks; });
    CHECK(!told.empty());
    for (const auto& [name, picks] : told) {
      CHECK((picks.scalar_type() == torch::kLong));
      in["picks." + name.substr(name.find('.') + 1)] = picks;
    }
    CHECK(torch::equal(ditto::test::predict(*model, in, torch::kFloat).prediction, own.prediction));
    for (auto& [name, tensor] : in.tensors)
      if (name.starts_with("picks.")) tensor = tensor.roll(1, 1);  // each token those of the one before
    CHECK_FALSE(torch::equal(ditto::test::predict(*model, in, torch::kFloat).prediction, own.prediction));
  }
}

TEST_CASE(
    "dit_text, st_dit, dit_moe, mmdit, flux: what does not go together is refused, with both sides and a remedy") {
  const auto picture = model_needs({3, 8, 8}, 3, 10), text = model_needs({3, 8, 8}, 3, 0, 12),
             video = model_needs({3, 4, 8, 8}, 3, 0, 12), silent_video = model_needs({3, 4, 8, 8}, 3, 10);
  const auto refused = [](const char* model, const std::map<std::string, OptionValue>& options,
                          const ditto::ModelNeeds& needs, const char* part) {
    CAPTURE(part);
    try {
      ditto::test::make_plugin<Model>("models", model, options, needs);
      FAIL_CHECK("it was not refused");
    } catch (const ditto::Error& error) {
      CHECK((error.kind() == ditto::ErrorKind::config));
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
    }
  };
  const auto number = [](int64_t value) { return OptionValue(value); };
  const auto word = [](const char* value) { return OptionValue(std::string(value)); };
  refused("dit_text", {}, picture, "takes text, the data has none");
  refused("dit_text", {}, video, "the data has 4 dims");
  refused("dit_text", {{"heads", number(5)}}, text, "= 5 does not divide model.width = 384; use 4 or 6");
  refused("dit_text", {{"kv_heads", number(4)}}, text, "= 4 does not divide model.heads = 6; use 3 or 6");
  refused("dit_text", {{"patch", number(3)}}, text, "3 does not divide pictures of 8 x 8");
  refused("st_dit", {}, picture, "takes video");
  refused("st_dit", {{"cross", word("all")}}, silent_video, "attends to text, the data has none");
  refused("st_dit", {{"patch_frames", number(3)}}, video, "3 does not divide the frames, 4");
  refused("st_dit", {{"full", true}, {"arrangement", word("alternating")}}, video, "goes with arrangement = \"joint\"");
  refused("st_dit", {{"depth", number(3)}, {"arrangement", word("alternating")}}, video, "use an even number");
  refused("st_dit", {{"depth", number(2)}, {"arrangement", word("alternating")}}, video, "plugin = \"latte\"");
  refused("latte", {{"depth", number(3)}}, video, "use an even number");
  refused("latte", {}, picture, "takes video");
  refused("dit_moe", {{"top_k", number(9)}}, picture, "top_k");
  refused("dit_moe", {{"moe_every", number(13)}}, picture, "= 13 leaves 12 blocks without experts");
  refused("dit_moe", {{"top_k", number(1)}, {"normalise", true}}, picture, "leaves no weight to learn");
  refused("dit_moe", {{"router", word("expert_choice")}, {"balance", OptionValue(0.1)}}, picture,
          "is for router = \"token_choice\"");
  const auto numbers = [](std::vector<int64_t> values) { return OptionValue(std::move(values)); };
  for (const char* model : {"mmdit", "flux"}) {
    refused(model, {}, picture, "takes text, the data has none");
    refused(model, {}, video, "the data has 4 dims");
    refused(model, {{"text_mask", false}}, text, "what a sample is would depend on its neighbours");
    refused(model, {{"patch", number(3)}}, text, "3 does not divide pictures of 8 x 8");
  }
  refused("mmdit", {{"depth", number(2)}, {"dual_attention", number(3)}}, text, "is above model.depth");
  refused("mmdit", {{"width", number(6)}, {"heads", number(2)}}, text, "is not a multiple of 4");
  const char* turn = "is not three even numbers, the last two above 0, that add up to a head's width";
  for (const auto& rotary : {numbers({64}), numbers({16, 24, 22}), numbers({22, 21, 21}), numbers({64, 0, 0})})
    refused("flux", {{"rotary", rotary}}, text, turn);
  refused("flux", {{"width", number(24)}}, text, turn);  // heads of 4
  refused("flux", {{"single_depth", number(0)}}, text, "single_depth");
}
