// Which ops on bf16 tensors are computed in fp32: by made-up rates, in both directions, and what a run keeps.
#include "core/components/bf16_ways.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/assembly/resume.h"
#include "core/components/bf16_rates.h"
#include "core/components/bf16_rows.h"
#include "core/config/late_options.h"
#include "core/config/numerics.h"
#include "core/measure/user_cache.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"

using ditto::ErrorKind;
using ditto::KernelRow;
using ditto::OpCall;
using ditto::OpInputs;
using ditto::Rates;
using ditto::Recipe;
using ditto::Tensors;
using ditto::Ways;
using ditto::test::TemporaryFolder;

namespace {

// What a row is chosen by; it computes as the reference does.
KernelRow way(const std::string& variant, int score) {
  return {"linear", variant, [score](const OpCall& call) { return call.dtype == torch::kBFloat16 ? score : 0; },
          [](const OpInputs& in) -> Tensors { return {torch::linear(in.tensor(0), in.tensor(1), in.tensor(2))}; },
          [](const Tensors&, const OpInputs& in, const Tensors&) -> Tensors {
            return {torch::zeros_like(in.tensor(0)), torch::zeros_like(in.tensor(1)), torch::zeros_like(in.tensor(2))};
          }};
}

std::string chosen(const std::vector<KernelRow>& rows, at::ScalarType dtype = torch::kBFloat16) {
  const ditto::OpTable table(rows);
  const auto x = torch::ones({8, 4}, dtype), weight = torch::ones({4, 4}, dtype), bias = torch::ones({4}, dtype);
  table.run("linear", {{x, weight, bias}});
  return table.chosen().begin()->second;
}

Recipe of(const std::string& run) { return Recipe::parse("[run]\nprecision = \"bf16\"\n" + run, "bf16.toml"); }

std::string chosen_by(std::vector<KernelRow> rows, const std::string& run) {
  ditto::choose_ways(rows, of(run));
  return chosen(rows);
}

// The user's cache, for as long as this lives.
class OwnCache {
 public:
  OwnCache() {
    if (const char* value = std::getenv("XDG_CACHE_HOME")) before_ = value;
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  ~OwnCache() { before_.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before_.c_str(), 1); }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;
  std::filesystem::path rates() const {
    std::filesystem::path found;
    for (const auto& one : std::filesystem::directory_iterator(folder_.path() / "ditto/rates")) found = one.path();
    return found;
  }

 private:
  TemporaryFolder folder_;
  std::string before_;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Ways kHas{"linear", "pairs", "in_fp32_x", false}, kHasNone{"linear", "reference", "in_fp32_x", true};

}  // namespace

TEST_CASE("a way is taken where it is clearly the faster one, and the scores' where neither is") {
  const auto rates = [](double bf16, double fp32) {
    return Rates{{"linear", {{"pairs", bf16}, {"reference", bf16}, {"in_fp32_x", fp32}}}};
  };
  CHECK(ditto::is_faster_in_fp32(rates(100, 160), kHas) == true);
  CHECK(ditto::is_faster_in_fp32(rates(160, 100), kHas) == false);
  CHECK(ditto::is_faster_in_fp32(rates(100, 105), kHas) == false);
  CHECK(ditto::is_faster_in_fp32(rates(1, 100), kHasNone) == true);
  CHECK(ditto::is_faster_in_fp32(rates(160, 100), kHasNone) == false);
  CHECK(ditto::is_faster_in_fp32(rates(105, 100), kHasNone) == true);
  CHECK_FALSE(ditto::is_faster_in_fp32({{"linear", {{"pairs", 1.0}}}}, kHas).has_value());
  CHECK_FALSE(ditto::is_faster_in_fp32({}, kHas).has_value());
}

TEST_CASE("run.bf16_in_fp32 decides among rows of bf16 tensors, whatever their scores are") {
  const std::vector<KernelRow> has{way("pairs", 20), way("in_fp32_x", 1)}, has_none{way("in_fp32_x", 15)};
  CHECK(chosen_by(has, "") == "pairs");  // not measured yet: as scores say
  CHECK(chosen_by(has, "bf16_in_fp32 = []") == "pairs");
  CHECK(chosen_by(has, "bf16_in_fp32 = [\"linear\"]") == "in_fp32_x");
  CHECK(chosen_by(has, "bf16_in_fp32 = [\"attention\"]") == "pairs");
  CHECK(chosen_by(has_none, "") == "in_fp32_x");
  CHECK(chosen_by(has_none, "bf16_in_fp32 = []") == "reference");
  CHECK(chosen_by(has_none, "bf16_in_fp32 = [\"linear\"]") == "in_fp32_x");
  auto rows = has;
  ditto::choose_ways(rows, of("bf16_in_fp32 = [\"linear\"]"));
  CHECK(chosen(rows, torch::kFloat) == "reference");  // what a row cannot compute it still cannot
}

TEST_CASE("both ways of an op are found by a call of it, and measured") {
  const auto ways = ditto::find_ways({way("pairs", 20), way("in_fp32_x", 1), way("in_fp32_y", 2)}, {});
  REQUIRE(ways.size() == 1);
  CHECK(ways[0].op == "linear");
  CHECK(ways[0].in_bf16 == "pairs");
  CHECK(ways[0].in_fp32 == "in_fp32_y");
  CHECK_FALSE(ways[0].fp32_by_scores);
  const std::vector<KernelRow> none{way("in_fp32_x", 15)};
  const auto without = ditto::find_ways(none, {});
  REQUIRE(without.size() == 1);
  CHECK(without[0].in_bf16 == "reference");
  CHECK(without[0].fp32_by_scores);
  CHECK(ditto::find_ways({way("pairs", 20)}, {}).empty());
  Rates rates;
  const int threads = at::get_num_threads();
  ditto::measure(rates, without[0], none, {});
  CHECK(at::get_num_threads() == threads);
  CHECK(rates.at("linear").at("reference") > 0);
  CHECK(rates.at("linear").at("in_fp32_x") > 0);
  CHECK(ditto::is_faster_in_fp32(rates, without[0]).has_value());
}

TEST_CASE("rates are read as they were written, and a file that is damaged holds none") {
  const OwnCache cache;
  const Rates rates{{"linear", {{"pairs", 100.5}, {"in_fp32_x", 160}}}, {"attention", {{"pairs", 1e-3}}}};
  const ditto::RatesFile file;
  CHECK(file.read().empty());
  file.write(rates);
  CHECK(file.read() == rates);
  const auto path = cache.rates();
  const auto whole = text_of(path);
  const auto with = [&](const std::string& before, const std::string& after) {
    auto text = whole;
    REQUIRE(text.find(before) != text.npos);
    return text.replace(text.find(before), before.size(), after);
  };
  const std::vector<std::string> damaged{"",
                                         "{",
                                         "[]",
                                         "{}",
                                         "null",
                                         whole.substr(0, whole.size() / 2),
                                         whole + whole,
                                         std::string(4096, '\0'),
                                         std::string(1000, '['),
                                         with("160", "-160"),
                                         with("160", "0"),
                                         with("160", "1e999"),
                                         with("160", "\"160\""),
                                         with("160", "null"),
                                         with("160", "[160]"),
                                         with("100.5", "nan"),
                                         with("calls_per_s", "seconds"),
                                         with("machine", "engine"),
                                         with("Ditto", "Other"),
                                         with("\"linear\": {", "\"linear\": 3, \"x\": {")};
  for (const auto& text : damaged) {
    std::ofstream(path, std::ios::binary) << text;
    CHECK_MESSAGE(file.read().empty(), text.substr(0, 80));
  }
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK(file.read().empty());
  CHECK_NOTHROW(file.write(rates));  // it cannot be: no error
}

TEST_CASE("a run keeps the ways that it began with, and one of before there was the option what scores said") {
  const OwnCache cache;
  ditto::Registry registry({{ditto::test::plugin_folder(), "the test"}});
  auto measured = of("");
  ditto::measure_ways(measured, registry, ditto::Group());
  const auto found = measured.run.bf16_in_fp32;
  CHECK(measured.bf16_was_measured);
  CHECK(ditto::measures_bf16(of("")));
  CHECK_FALSE(ditto::measures_bf16(measured));
  const auto kept = [&](const std::string& saved) {
    auto recipe = measured;
    ditto::keep_ways(recipe, registry, saved);
    const auto* noted = recipe.resolved().find_path("run.bf16_in_fp32");
    CHECK(ditto::formats::render_toml_value(*noted) == ditto::to_text(ditto::OptionValue(recipe.run.bf16_in_fp32)));
    return recipe.run.bf16_in_fp32;
  };
  using Ops = std::vector<std::string>;
  CHECK(kept("[run]\nbf16_in_fp32 = []\n") == Ops{});
  CHECK(kept("[run]\nbf16_in_fp32 = [\"attention\", \"linear\"]\n") == Ops{"attention", "linear"});
  CHECK(kept("[run]\nbf16_in_fp32 = [\"nothing_like_it\", \"linear\"]\n") == Ops{"linear"});
  CHECK(kept("[run]\nbf16_in_fp32 = [\"auto\"]\n") == found);  // nothing was in bf16 then
  const auto before = kept("[run]\nprecision = \"bf16\"\n");
#if defined(__x86_64__)
  CHECK(before.empty() == static_cast<bool>(__builtin_cpu_supports("avx512bw")));
#endif
  auto given = of("bf16_in_fp32 = [\"linear\"]");
  ditto::keep_ways(given, registry, "[run]\nbf16_in_fp32 = []\n");
  CHECK(given.run.bf16_in_fp32 == Ops{"linear"});  // what is asked for stands above it
}

TEST_CASE("another way on a resume is said, one that was left to be measured is no change") {
  const auto lines = [](const std::string& saved, const std::string& now) {
    const auto recipe = of(now);
    return ditto::compare_recipes(of(saved).resolved(), recipe.resolved(), recipe.effects(), {});
  };
  const auto said = lines("bf16_in_fp32 = []", "bf16_in_fp32 = [\"linear\"]");
  REQUIRE(said.size() == 1);
  CHECK(said[0] == "run.bf16_in_fp32: [] -> [\"linear\"] (equal within rounding from here on, not bit for bit)");
  CHECK(lines("", "bf16_in_fp32 = []").empty());
  CHECK(lines("bf16_in_fp32 = [\"linear\"]", "").empty());
}

TEST_CASE("ops of run.bf16_in_fp32 that nothing computes so are refused") {
  const auto refusal = [](const std::string& run, const std::vector<KernelRow>& rows) {
    return ditto::test::error_of(ErrorKind::config, [&] { ditto::require_ways(rows, of(run)); });
  };
  const std::vector<KernelRow> has{way("pairs", 20), way("in_fp32_x", 1)};
  CHECK(refusal("bf16_in_fp32 = [\"linear\"]", has).empty());
  CHECK(refusal("bf16_in_fp32 = [\"lineal\"]", has).find("did you mean \"linear\"?") != std::string::npos);
  CHECK(refusal("bf16_in_fp32 = [\"attention\"]", has).find("expected some of linear") != std::string::npos);
  CHECK(refusal("bf16_in_fp32 = [\"linear\"]", {way("pairs", 20)}).find("plugins.kernels") != std::string::npos);
  CHECK(ditto::test::error_of(ErrorKind::config, [] {
          of("bf16_in_fp32 = [\"auto\", \"linear\"]");
        }).find("beside ops") != std::string::npos);
}

TEST_CASE("ops of run.bf16_in_fp32 that nothing of a recipe computes in bf16 are said, and change nothing") {
  const auto idle = [](const std::string& run) {
    const auto recipe = Recipe::parse("[run]\n" + run, "bf16.toml");
    const auto lines = ditto::notes_on_options(recipe);
    CHECK(lines.empty() == ditto::idle_bf16(recipe).empty());
    return lines.empty() ? "" : lines[0];
  };
  const std::string ops = "bf16_in_fp32 = [\"linear\"]\n", bf16 = "precision = \"bf16\"\n";
  CHECK(idle(ops).find("nothing is computed in bf16") != std::string::npos);
  CHECK(idle(ops + bf16 + "numerics = \"one\"\n").find("\"one\"") != std::string::npos);
  CHECK(idle(ops + bf16 + "device = \"cuda\"\n").find("\"cuda\"") != std::string::npos);
  CHECK(idle(ops + bf16).empty());
  CHECK(idle(ops + "[network.guide]\nweights = \"runs/small\"\nprecision = \"bf16\"\n").empty());
  CHECK(idle("bf16_in_fp32 = []\n").empty());
  CHECK(idle("bf16_in_fp32 = [\"auto\"]\n").empty());
}
