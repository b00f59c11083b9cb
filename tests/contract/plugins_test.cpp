// The contract tests of sdk/testing, run on every plugin of the tree. A plugin that is new is tested with its defaults
// without an edit here; where those do not do, its options stand in the tables below.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include <ditto/testing/checks.h>

namespace fs = std::filesystem;
using ditto::ModelSpec;
using ditto::OptionValue;
using ditto::testing::OptionValues;
using ditto::testing::Report;

namespace {

// Every library of a kind's folder, by its id.
std::vector<std::pair<std::string, std::string>> plugins_of(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& file : fs::directory_iterator(fs::path(DITTO_BUILD_DIR) / "lib/ditto/plugins" / folder))
    if (file.path().extension() == ".so") found.emplace_back(file.path().stem().string().substr(3), file.path());
  CHECK_FALSE(found.empty());
  return found;
}

// The option sets to test a plugin with; its defaults alone where it is not listed.
using Variants = std::map<std::string, std::vector<OptionValues>>;
std::vector<OptionValues> variants(const Variants& table, const std::string& id) {
  const auto it = table.find(id);
  return it == table.end() ? std::vector<OptionValues>{{}} : it->second;
}

void passes(const Report& report) {
  MESSAGE(report.text());
  CHECK_MESSAGE(report.passed(), report.failures());
}

OptionValue text(const char* value) { return std::string(value); }
OptionValue number(int64_t value) { return value; }

OptionValues tiny_dit(const char* convention) {
  return {{"depth", number(2)}, {"width", number(32)}, {"heads", number(4)}, {"convention", text(convention)}};
}

}  // namespace

TEST_CASE("every model keeps its promises") {
  const Variants table{{"dit", {tiny_dit("facebook"), tiny_dit("diffusers")}}};
  const std::vector<ModelSpec> specs{{{4, 8, 8}, 4, 10, 0},
                                     {{3, 8, 4}, 6, 0, 0}};  // classes; none, and a learned sigma
  for (const auto& [id, path] : plugins_of("models"))
    for (const OptionValues& options : variants(table, id))
      for (const ModelSpec& spec : specs) passes(ditto::testing::check_model(path, spec, options));
}

TEST_CASE("every scheduler keeps its promises") {
  const Variants table{
      {"iddpm", {{}, {{"variance", text("fixed_large")}}, {{"timesteps", number(100)}}}},
      {"rectified_flow",
       {{}, {{"convention", text("data_at_one")}}, {{"times", text("logit_normal")}, {"shift", OptionValue(3.0)}}}}};
  for (const auto& [id, path] : plugins_of("schedulers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_scheduler(path, options));
}

TEST_CASE("every sampler keeps its promises") {
  const Variants table{{"ddim", {{}, {{"eta", OptionValue(1.0)}}}}};
  for (const auto& [id, path] : plugins_of("samplers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_sampler(path, options));
}

TEST_CASE("every optimizer keeps its promises") {
  const Variants table{{"adamw", {{}, {{"weight_decay", OptionValue(0.1)}}}}};
  for (const auto& [id, path] : plugins_of("optimizers"))
    for (const OptionValues& options : variants(table, id)) passes(ditto::testing::check_optimizer(path, options));
}

TEST_CASE("every kernel agrees with the reference, forward and backward") {
  for (const auto& [id, path] : plugins_of("kernels")) passes(ditto::testing::check_kernels(path));
}

TEST_CASE("every source of data keeps its promises") {
  using Texts = std::vector<std::string>;
  const OptionValues digits{{"shards", Texts{"train-*.tar"}},
                            {"validation_shards", Texts{"validation-*.tar"}},
                            {"image", Texts{"png"}},
                            {"classes", number(10)},
                            {"channels", number(1)}};
  const Variants table{{"webdataset", {digits}},
                       {"synthetic", {{}, {{"content", text("clusters")}}, {{"content", text("noise")}}}}};
  for (const auto& [id, path] : plugins_of("data"))
    for (const OptionValues& options : variants(table, id))
      passes(ditto::testing::check_source(path, options, std::string(DITTO_SOURCE_DIR) + "/data/digits"));
}

TEST_CASE("every encoder keeps its promises") {
  const std::vector<ditto::TensorSpec> data{{"image", at::kFloat, {3, 16, 16}, "-1 … 1"}};
  for (const auto& [id, path] : plugins_of("encoders")) passes(ditto::testing::check_encoder(path, data));
}
