// Every model against its reference: the original class, run by models/make_NAME.py. Weights of its names, filled
// through the model's own name map, give its prediction and every gradient; models of published sizes have its
// parameters, by number, name and shape. Rows of the table in docs/models.md are printed (tests/models_table.py reads
// them).
//
// Claim (numbers): Every model with a published class is that class, run as it is: predictions and every gradient to
// 1e-10 in fp64, at weights of its own names, and its parameters by number, name and shape. Also: `models.md`
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>
#include <support/reference.h>

namespace fs = std::filesystem;
using ditto::Batch;
using ditto::Model;
using ditto::OptionValue;
using ditto::test::distance;
using ditto::test::option_of;
using ditto::test::Shape;
using nlohmann::json;
using torch::Tensor;

namespace {

constexpr double kFp64 = 1e-10, kFp32 = 1e-5;

at::ScalarType dtype_of(const std::string& name) {
  const std::map<std::string, at::ScalarType> known{{"Float", at::kFloat}, {"Long", at::kLong}, {"Bool", at::kBool}};
  return known.at(name);
}

struct Case {
  std::string name;
  json golden, spec;

  explicit Case(const fs::path& path)
      : name(path.stem()), golden(json::parse(std::ifstream(path))), spec(golden.at("case")) {}

  std::string text(const char* key) const { return spec.at(key).get<std::string>(); }
  bool is_count() const { return golden.contains("parameters"); }

  ditto::ModelNeeds needs() const {
    ditto::ModelNeeds made{{}, spec.at("needs").at("out_channels").get<int64_t>()};
    for (const auto& input : spec.at("needs").at("inputs"))
      made.inputs.push_back({input.at("name").get<std::string>(), dtype_of(input.at("dtype").get<std::string>()),
                             input.at("shape").get<Shape>(), "", input.at("values").get<int64_t>()});
    return made;
  }
  std::map<std::string, OptionValue> options() const {
    std::map<std::string, OptionValue> made;
    for (const auto& [key, value] : spec.at("options").items()) made[key] = option_of(value);
    return made;
  }
  std::shared_ptr<Model> model() const {
    return ditto::test::make_plugin<Model>("models", text("model"), options(), needs());
  }
  Batch batch(at::ScalarType dtype) const {
    Batch in;
    for (const auto& [input, given] : spec.at("inputs").items())
      if (given.contains("drawn"))
        in[input] =
            ditto::test::values(input, given.at("drawn").get<Shape>(), given.at("bound").get<double>()).to(dtype);
      else
        in[input] = ditto::test::tensor(*given.begin())
                        .to(given.contains("doubles")  ? dtype
                            : given.contains("floats") ? torch::kFloat
                            : given.contains("flags")  ? torch::kBool
                                                       : torch::kLong);
    return in;
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<fs::path> paths;
    for (const auto& file : fs::directory_iterator(DITTO_SOURCE_DIR "/tests/golden/models"))
      if (file.path().extension() == ".json") paths.push_back(file.path());
    std::sort(paths.begin(), paths.end());
    return std::vector<Case>(paths.begin(), paths.end());
  }();
  return all;
}

void print(const json& row) { std::cout << "models_test: " << row.dump() << std::endl; }

struct Errors {
  double output = 0, gradient = 0;
};

// Of one case in one precision; every tensor of theirs is compared.
Errors compare(const Case& test, at::ScalarType dtype) {
  const double tolerance = dtype == torch::kDouble && test.text("precision") == "fp64" ? kFp64 : kFp32;
  const auto model = test.model();
  model->to(dtype);
  const auto format = model->foreign(test.text("format"));
  ditto::test::fill_as_reference(*model, format);
  const auto made = ditto::test::predict(*model, test.batch(dtype), dtype);
  const auto grad_output = ditto::test::values("grad_output", made.prediction.sizes().vec(), 1.75).to(dtype);
  auto loss = (made.prediction * grad_output).sum();
  for (const auto& [name, loss_B] : made.stream.auxiliary_losses) loss = loss + loss_B.sum();
  loss.backward();

  const auto& golden = test.golden.at("tensors");
  std::set<std::string> seen;
  const auto check = [&](const std::string& name, const Tensor& tensor, double& worst, double most) {
    REQUIRE_MESSAGE(golden.contains(name), test.name << ": " << name << " is not the reference's");
    const double d = distance(name, golden.at(name), tensor);
    CHECK_MESSAGE(d <= most, test.name << ": " << name << " differs by " << d);
    worst = std::max(worst, d);
    seen.insert(name);
  };
  Errors errors;
  double constants = 0;
  check("prediction", made.prediction, errors.output, tolerance);
  for (const auto& [name, loss_B] : made.stream.auxiliary_losses)
    check("loss." + name, loss_B, errors.output, tolerance);
  for (const auto& [name, value] : format.constants) check("constant." + name, value, constants, 1e-6);
  const auto& zero = test.spec.at("zero");
  for (const auto& [name, gradient] : ditto::test::reference_gradients(*model, format)) {
    if (!zero.contains(name)) {
      check("grad." + name, gradient, errors.gradient, tolerance);
      continue;
    }
    CHECK_MESSAGE(gradient.sizes().vec() == zero.at(name).get<Shape>(), name);
    const double most = gradient.abs().max().item<double>() / test.spec.at("largest_gradient").get<double>();
    CHECK_MESSAGE(most <= tolerance, test.name << ": the gradient of " << name << " is not zero");
    seen.insert(name);
  }
  for (const auto& [name, value] : golden.items())
    CHECK_MESSAGE(seen.count(name), test.name << ": " << name << " is not in the model's map");
  CHECK_MESSAGE(seen.size() == golden.size() + zero.size(), test.name);
  CHECK((format.copies == test.spec.at("copies").get<std::map<std::string, std::string>>()));
  return errors;
}

}  // namespace

TEST_CASE("models: outputs and every gradient are those of the reference, filled by its own names") {
  for (const Case& test : cases()) {
    if (test.is_count()) continue;
    CAPTURE(test.name);
    const Errors fp64 = compare(test, torch::kDouble), fp32 = compare(test, torch::kFloat);
    print({{"case", test.name},
           {"model", test.text("model")},
           {"reference", test.text("reference")},
           {"changes", test.text("changes")},
           {"precision", test.text("precision")},
           {"fp64", {fp64.output, fp64.gradient}},
           {"fp32", {fp32.output, fp32.gradient}}});
  }
}

TEST_CASE("models: a published size has the reference's parameters, by number, name and shape") {
  const ditto::ShapesAlone no_numbers;
  for (const Case& test : cases()) {
    if (!test.is_count()) continue;
    CAPTURE(test.name);
    const auto model = test.model();
    int64_t count = 0;
    for (const auto& one : model->parameters()) count += one.numel();
    CHECK(count == test.golden.at("parameters").get<int64_t>());
    CHECK(ditto::test::hash_of_names(*model, model->foreign(test.text("format"))) ==
          test.golden.at("names").get<std::string>());
    print({{"case", test.name},
           {"model", test.text("model")},
           {"reference", test.text("reference")},
           {"parameters", count}});
  }
}

TEST_CASE("models: options that no case sets are printed") {
  std::map<std::string, std::set<std::string>> set;
  for (const Case& test : cases())
    for (const auto& [key, value] : test.spec.at("options").items()) set[test.text("model")].insert(key);
  for (const auto& [model, given] : set) {
    ditto::OptionMap none{model, "test.toml:1:1", {}};
    ditto::OptionReader reader(none);
    ditto::test::open_plugin<Model>("models", model).declare(reader);
    json unset = json::array();
    for (const auto& option : reader.declared())
      if (!given.count(option.name)) unset.push_back(option.name);
    CHECK(given.size() + unset.size() == reader.declared().size());
    print({{"model", model}, {"unset", unset}});
  }
}
