// The optimizers against torch.optim and the papers' formulas: runs made by optimizers_test.py.
//
// Claim (numbers): The optimizers are torch's, the papers' and bitsandbytes' (its AdamW of 8 bits in the first step;
// of what is coded 97 % to 1e-6 after ten), and a slice is updated to the bits of the whole. Also:
// `bitsandbytes_test.py`, `whole_tensors_test.cpp`
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/optimizer.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>

using ditto::test::tensor;
using nlohmann::json;
using torch::Tensor;

namespace {

constexpr double kLr = 0.02;
constexpr int kSteps = 10;
using Named = std::map<std::string, Tensor>;
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
const Shapes kShapes{{"tall", {7, 3}}, {"wide", {3, 8}}, {"bias", {5}}};
const Shapes kMatrices{{"tall", {7, 3}}, {"wide", {3, 8}}};
const Shapes kCoded{{"large", {33, 130}}, {"small", {3, 70}}};

const json& golden() {
  static const json values = ditto::test::read_json("tests/golden/optimizers.json");
  return values;
}

// Every matrix is whole already.
struct OneRank final : ditto::WholeTensors {
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override { return local; }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    return whole;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    return std::vector<bool>(local.size(), true);
  }
};

// As in optimizers_test.py: a linear congruential generator's upper 24 bits, -1 … 1.
Tensor numbers(uint32_t seed, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  auto all = torch::empty(shape, at::kDouble);
  uint32_t state = seed * 747796405u;
  for (int64_t i = 0; i < all.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    all.data_ptr<double>()[i] = (state >> 8) / 8388608.0 - 1;
  }
  return all.to(dtype);
}

// The weights after so many steps.
Named run(const std::string& plugin, const std::map<std::string, ditto::OptionValue>& options, at::ScalarType dtype,
          const Shapes& shapes = kShapes, int steps = kSteps) {
  std::vector<ditto::OptimizedParameter> parameters;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    parameters.push_back({name, numbers(static_cast<uint32_t>(1 + i), shape, dtype).requires_grad_(), shape});
  }
  const OneRank whole;
  const auto optimizer =
      ditto::test::make_plugin<ditto::Optimizer>("optimizers", plugin, options, {parameters, &whole});
  std::vector<Tensor> average;
  if (optimizer->averages())
    for (const auto& p : parameters) average.push_back(p.tensor.detach().clone());
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto seed = static_cast<uint32_t>(100 * step + 50 + static_cast<int>(i));
      parameters[i].tensor.mutable_grad() = numbers(seed, shapes[i].second, dtype) * std::pow(2.0, step % 4 - 2);
    }
    optimizer->step({.lr = kLr, .average = average});
  }
  Named result;
  for (const auto& p : parameters) result[p.name] = p.tensor.detach();
  for (size_t i = 0; i < average.size(); ++i) result[parameters[i].name + "_average"] = average[i];
  return result;
}

// The largest difference over the largest number of each tensor, and the largest of those.
double distance(const Named& ours, const json& theirs) {
  double worst = 0;
  for (const auto& [name, found] : ours) {
    const auto expected = tensor(theirs.at(name));
    REQUIRE(found.sizes() == expected.sizes());
    worst = std::max(worst, ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>());
  }
  return worst;
}

struct Case {
  const char *golden, *plugin;
  std::map<std::string, ditto::OptionValue> options;
  Shapes shapes = kShapes;
};

constexpr double kUlp = 1.2e-7;  // of fp32

}  // namespace

TEST_CASE(
    "optimizers move weights as their peers do, in fp64 exactly and in fp32 within a few units in the last place") {
  const std::vector<Case> cases{
      {"sgd", "sgd", {{"momentum", 0.0}}},
      {"sgd_momentum", "sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}}},
      {"sgd_nesterov", "sgd", {{"momentum", 0.8}, {"nesterov", true}}},
      {"adamw", "adamw", {{"beta2", 0.95}, {"weight_decay", 0.1}}},
      {"adamw", "adamw8bit", {{"beta2", 0.95}, {"weight_decay", 0.1}}},  // few numbers: moments of 32 bits
      {"adamw", "muon", {{"adamw", std::vector<std::string>{"tall", "wide"}}, {"weight_decay", 0.1}}},
      {"lion", "lion", {{"weight_decay", 0.1}}},
      {"adafactor", "adafactor", {{"weight_decay", 0.1}}},
      {"schedule_free", "schedule_free", {{"beta2", 0.99}, {"weight_decay", 0.1}}},
      {"muon", "muon", {{"momentum", 0.9}, {"weight_decay", 0.1}}, kMatrices},
      {"muon_rms",
       "muon",
       {{"momentum", 0.9}, {"nesterov", false}, {"adjust_lr", std::string("match_rms_adamw")}},
       kMatrices},
  };
  for (const auto& [name, plugin, options, shapes] : cases) {
    CAPTURE(std::string(name));
    CAPTURE(std::string(plugin));
    const double exact = distance(run(plugin, options, at::kDouble, shapes), golden().at(name));
    const double rounded = distance(run(plugin, options, at::kFloat, shapes), golden().at(name));
    MESSAGE(std::string(name) << " by " << std::string(plugin) << ": fp64 " << exact << ", fp32 " << rounded);
    CHECK(exact < 1e-13);
    // Newton-Schulz goes through 15 products of matrices, and its slope of 3.4 at zero enlarges what they round.
    CHECK(rounded < (shapes.size() == kMatrices.size() ? 16 : 8) * kUlp);
  }
}

TEST_CASE("Muon in bf16 is torch.optim's") {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);  // where announced matrix tiles die
  const double found =
      distance(run("muon", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"precision", std::string("bf16")}}, at::kFloat,
                   kMatrices),
               golden().at("muon_bf16"));
  MESSAGE("difference " << found);
  CHECK(found < 2e-2);  // another processor rounds bf16 products in another way
}

TEST_CASE("AdamW with 8 bits codes as its paper says") {
  auto ours = run("adamw8bit", {{"beta2", 0.99}, {"weight_decay", 0.1}}, at::kFloat, kCoded);
  const auto large = ours.at("large");
  ours.erase("large");
  ours["corner"] = large.slice(0, 0, 3).slice(1, 60, 70);
  ours["end"] = large.slice(0, -2).slice(1, -4);
  ours["sum"] = large.to(at::kDouble).sum();
  const double found = distance(ours, golden().at("adamw8bit"));
  MESSAGE("difference " << found);
  CHECK(found < 8 * kUlp);
}

TEST_CASE("Lion, and AdamW with 8 bits, are bitsandbytes'") {
  const json theirs = ditto::test::read_json("tests/golden/bitsandbytes.json");
  CHECK(distance(run("lion", {{"weight_decay", 0.1}}, at::kFloat), theirs.at("lion")) < 8 * kUlp);
  const std::map<std::string, ditto::OptionValue> options{{"beta2", 0.99}, {"weight_decay", 0.1}};
  CHECK(distance(run("adamw8bit", options, at::kFloat, kCoded, 1), theirs.at("first_step")) < 8 * kUlp);
  // Then moments are coded, and theirs not always as the nearest value: numbers whose moments never parted stay equal.
  const auto ours = run("adamw8bit", options, at::kFloat, kCoded);
  CHECK(distance({{"small", ours.at("small")}}, theirs.at("adamw8bit")) < 8 * kUlp);
  const auto apart = (ours.at("large").to(at::kDouble) - tensor(theirs.at("adamw8bit").at("large"))).abs();
  const double equal = (apart < 1e-6).to(at::kDouble).mean().item<double>();
  MESSAGE("of what is coded " << equal << " are equal after ten steps; the largest difference "
                              << apart.max().item<double>());
  CHECK(equal > 0.97);
  CHECK(apart.max().item<double>() < kLr / 2);
}

TEST_CASE("AdamW with 8 bits keeps a quarter of AdamW's state, and 1/16 of a number for scales") {
  std::vector<ditto::OptimizedParameter> parameters{{"w", torch::ones({64, 128}).requires_grad_(), {64, 128}}};
  const auto optimizer =
      ditto::test::make_plugin<ditto::Optimizer>("optimizers", "adamw8bit", {}, {parameters, nullptr});
  size_t bytes = 0;
  for (const auto& [kind, state] : optimizer->state())
    for (const auto& tensor : state.tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
  CHECK(bytes == 64 * 128 * 2 * (1 + 4.0 / 64));
}

TEST_CASE("nesterov without momentum is refused") {
  CHECK_THROWS_WITH_AS(
      ditto::test::make_plugin<ditto::Optimizer>("optimizers", "sgd", {{"momentum", 0.0}, {"nesterov", true}}),
      doctest::Contains("nesterov"), ditto::Error);
}
