// The dit plugin against its paper's sizes and its two published definitions. The values are made by dit/make.py, which
// runs facebookresearch/DiT and diffusers; weights and inputs come from a formula that it and support/golden.h share.
//
// Claim (numbers): `dit` has the published parameter counts; its outputs and every gradient are those of
// facebookresearch/DiT and of diffusers.
#include <array>
#include <cmath>
#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <ditto/testing/checks.h>
#include <support/files.h>
#include <support/golden.h>
#include <support/open_plugin.h>

using ditto::Batch;
using ditto::Model;
using ditto::OptionValue;
using ditto::test::distance;
using ditto::test::values;
using ditto::testing::model_needs;
using nlohmann::json;
using torch::Tensor;

namespace {

double scale(const std::string& name, const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return 0.25;
  if (name.ends_with("embedding_table.weight")) return 1;
  return std::sqrt(3.0 * static_cast<double>(shape[0]) / static_cast<double>(c10::multiply_integers(shape)));
}

// --- one case ---

struct Case {
  std::string format, name;
  json golden, spec;

  Case(const std::string& format_, const std::string& name_) : format(format_), name(name_) {
    std::ifstream file(std::string(DITTO_SOURCE_DIR "/tests/golden/dit/") + format + "_" + name + ".json");
    golden = json::parse(file);
    spec = golden.at("case");
  }
  std::vector<int64_t> x() const { return spec.at("x").get<std::vector<int64_t>>(); }
  int64_t out_channels() const { return spec.at("out_channels").get<int64_t>(); }
  int64_t classes() const { return spec.at("classes").get<int64_t>(); }
  std::map<std::string, OptionValue> options(const std::string& convention) const {
    if (name == "s2") return {{"preset", std::string("S/2")}, {"convention", convention}};
    std::map<std::string, OptionValue> result{{"convention", convention}};
    for (const char* key : {"depth", "width", "heads", "patch"}) result[key] = spec.at(key).get<int64_t>();
    return result;
  }
  std::string own_convention() const { return format == "diffusers" ? "diffusers" : "facebook"; }
  Batch batch(at::ScalarType dtype) const {
    const auto samples = static_cast<int64_t>(spec.at("t").size());
    auto shape = x();
    shape.insert(shape.begin(), samples);
    Batch in;
    in["x"] = values("x", shape, 1.75).to(dtype);
    in["t"] = torch::tensor(spec.at("t").get<std::vector<double>>(), torch::kFloat);
    in["label"] = torch::tensor(spec.at("label").get<std::vector<int64_t>>(), torch::kLong);
    shape[1] = out_channels();
    in["grad_output"] = values("grad_output", shape, 1.75).to(dtype);
    return in;
  }
};

// A parameter's part under its foreign name, with the shape it has there: a view.
struct Part {
  std::string theirs;
  Tensor tensor;
};
std::vector<Part> parts(const ditto::ForeignTensor& mapped, const Tensor& ours) {
  std::vector<Part> result;
  const auto pieces = ours.chunk(static_cast<int64_t>(mapped.theirs.size()), 0);
  for (size_t i = 0; i < mapped.theirs.size(); ++i)
    result.push_back({mapped.theirs[i], mapped.shape.empty() ? pieces[i] : pieces[i].view(mapped.shape)});
  return result;
}

// Fills every parameter; fails where the map names one of them twice or never.
void fill(Model& model, const ditto::ForeignFormat& names) {
  const torch::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  std::set<std::string> filled;
  for (const auto& mapped : names.tensors) {
    REQUIRE(parameters.contains(mapped.ours));
    REQUIRE_MESSAGE(filled.insert(mapped.ours).second, mapped.ours);
    for (auto& part : parts(mapped, parameters[mapped.ours])) {
      const auto shape = part.tensor.sizes().vec();
      part.tensor.copy_(values(part.theirs, shape, scale(part.theirs, shape)));
    }
  }
  REQUIRE(filled.size() == parameters.size());
}

std::shared_ptr<Model> make(const Case& test, const std::string& convention) {
  return ditto::test::make_plugin<Model>("models", "dit", test.options(convention),
                                         model_needs(test.x(), test.out_channels(), test.classes()));
}

// The other convention has the same parameters, and refuses the names.
std::shared_ptr<Model> make(const Case& test, const std::string& convention, at::ScalarType dtype) {
  auto model = make(test, convention);
  model->to(dtype);
  fill(*model, make(test, test.own_convention())->foreign(test.format));
  return model;
}

Tensor predict(Model& model, const Batch& in, at::ScalarType dtype) {
  return ditto::test::predict(model, in, dtype).prediction;
}

// Softmax does not change when every key is moved alike: the true gradient of a key's bias is zero, and what is there
// is rounding, here and in the reference.
bool is_key_bias(const std::string& name) { return name.ends_with(".to_k.bias"); }

void compare(const Case& test, at::ScalarType dtype, double tolerance) {
  const auto model = make(test, test.own_convention(), dtype);
  const auto in = test.batch(dtype);
  const auto prediction = predict(*model, in, dtype);
  (prediction * in.at("grad_output")).sum().backward();

  const auto& golden = test.golden.at("tensors");
  std::set<std::string> seen;
  double worst = 0;
  const auto check = [&](const std::string& name, const Tensor& tensor) {
    REQUIRE_MESSAGE(golden.contains(name), name);
    seen.insert(name);
    if (is_key_bias(name)) return;
    const double d = distance(name, golden.at(name), tensor);
    CHECK_MESSAGE(d <= tolerance, name);
    worst = std::max(worst, d);
  };
  check("prediction", prediction);
  const auto parameters = model->named_parameters();
  for (const auto& mapped : model->foreign(test.format).tensors) {
    REQUIRE_MESSAGE(parameters[mapped.ours].grad().defined(), mapped.ours);
    for (const auto& part : parts(mapped, parameters[mapped.ours].grad())) check("grad." + part.theirs, part.tensor);
  }
  CHECK(seen.size() == golden.size());
  MESSAGE(test.format << " " << test.name << (dtype == torch::kDouble ? ", fp64: " : ", fp32: ") << seen.size()
                      << " tensors, largest difference " << worst);
}

struct Published {
  const char* preset;
  int64_t parameters;
};

// 1000 classes and the null class; 4 latent channels, twice as many out; the position table counted.
int64_t parameters(const std::string& preset, int64_t side) {
  const auto model =
      ditto::test::make_plugin<Model>("models", "dit", {{"preset", preset}}, model_needs({4, side, side}, 8, 1000));
  int64_t count = model->fixed_parameters();
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  return count;
}

}  // namespace

TEST_CASE("dit: every preset has the published number of parameters") {
  for (const auto& [preset, published] : {Published{"S/2", 32'963'360},
                                          {"S/4", 32'945'024},
                                          {"S/8", 33'148'160},
                                          {"B/2", 130'512'416},
                                          {"B/4", 130'475'648},
                                          {"B/8", 130'881'536},
                                          {"L/2", 458'102'816},
                                          {"L/4", 458'053'760},
                                          {"L/8", 458'594'816},
                                          {"XL/2", 675'129'632},
                                          {"XL/4", 675'074'432},
                                          {"XL/8", 675'683'072}}) {
    CAPTURE(preset);
    CHECK(parameters(preset, 32) == published);
  }
}

TEST_CASE("dit: XL/2 for pictures of 512 has the published number of parameters") {
  CHECK(parameters("XL/2", 64) == 676'014'368);
}

TEST_CASE("dit: outputs and every gradient are those of facebookresearch/DiT and of diffusers") {
  for (const char* format : {"facebook-dit", "diffusers"})
    for (const char* name : {"s2", "small2", "small4"}) compare(Case(format, name), torch::kFloat, 1e-5);
}

// In float32, roundings hide the norms' eps (a difference of some 4e-6).
TEST_CASE("dit: in double precision to the last digits") {
  for (const char* format : {"facebook-dit", "diffusers"})
    for (const char* name : {"small2", "small4"}) compare(Case(format, name), torch::kDouble, 1e-12);
}

TEST_CASE("dit: the two conventions are two functions") {
  for (const auto& [format, other] : {std::pair{"facebook-dit", "diffusers"}, {"diffusers", "facebook"}}) {
    const Case test(format, "small2");
    const auto model = make(test, other, torch::kDouble);
    const auto prediction = predict(*model, test.batch(torch::kDouble), torch::kDouble);
    CHECK(distance("prediction", test.golden.at("tensors").at("prediction"), prediction) > 1e-3);
  }
}

TEST_CASE("dit: weights are neither read nor written in the format of the other convention") {
  for (const auto& [convention, own, other] :
       {std::array{"facebook", "facebook-dit", "diffusers"}, {"diffusers", "diffusers", "facebook-dit"}}) {
    const auto model = make(Case(own, "small2"), convention);
    CHECK(model->foreign_formats().front() == own);
    for (const auto& format : model->foreign_formats()) CHECK(format != other);
    CHECK_FALSE(model->foreign(own).tensors.empty());
    const std::string refusal = ditto::test::error_of(ditto::ErrorKind::config, [&] { model->foreign(other); });
    for (const std::string& part : {std::string("model.convention = \"") + convention, "--format " + std::string(own)})
      CHECK_MESSAGE(refusal.find(part) != std::string::npos, refusal);
    CHECK(ditto::test::error_of(ditto::ErrorKind::config, [&] { model->foreign("nobody's"); }) != "");
  }
}

TEST_CASE("dit: the bias of the keys has no gradient") {
  const Case test("facebook-dit", "small2");
  const auto model = make(test, "facebook", torch::kFloat);
  const auto in = test.batch(torch::kFloat);
  (predict(*model, in, torch::kFloat) * in.at("grad_output")).sum().backward();
  const auto parameters = model->named_parameters();
  for (int64_t i = 0; i < model->depth(); ++i) {
    const auto qkv = parameters["blocks." + std::to_string(i) + ".qkv.bias"].grad().chunk(3);
    CHECK(qkv[1].abs().max().item<double>() < 1e-5 * qkv[0].abs().max().item<double>());
    CHECK(qkv[0].abs().max().item<double>() > 0.1);
  }
}

TEST_CASE("dit: without classes it is the model whose label table is zero") {
  const Case test("facebook-dit", "small2");
  const auto labelled = make(test, "facebook", torch::kFloat);
  const auto plain = ditto::test::make_plugin<Model>("models", "dit", test.options("facebook"),
                                                     model_needs(test.x(), test.out_channels()));
  fill(*plain, plain->foreign("facebook-dit"));
  const torch::NoGradGuard no_grad;
  labelled->named_parameters()["label.table"].zero_();
  const auto in = test.batch(torch::kFloat);
  Batch unlabelled;
  for (const char* name : {"x", "t"}) unlabelled[name] = in.at(name);
  CHECK(torch::equal(predict(*plain, unlabelled, torch::kFloat), predict(*labelled, in, torch::kFloat)));
  CHECK(plain->takes().size() == labelled->takes().size() - 1);
}
