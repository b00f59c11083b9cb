// Claim (numbers): Options at other values than their defaults against their peers: values made by
// option_values_test.py.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/optimizer.h>
#include <ditto/scheduler.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>

namespace {

using ditto::test::apart;
using ditto::test::make_plugin;
using ditto::test::tensor;
using nlohmann::json;
using torch::Tensor;
using Options = std::map<std::string, ditto::OptionValue>;

const json& values() {
  static const json all = ditto::test::read_json("tests/golden/option_values.json");
  return all;
}

Options options_in(const json& given) {
  Options options;
  for (const auto& [name, value] : given.items())
    options[name] =
        value.is_number_integer() ? ditto::OptionValue(value.get<int64_t>()) : ditto::OptionValue(value.get<double>());
  return options;
}

// Every matrix is whole already.
struct Whole final : ditto::WholeTensors {
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override { return local; }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    return whole;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    return std::vector<bool>(local.size(), true);
  }
};

std::vector<Tensor> list_of(const json& all) {
  std::vector<Tensor> list;
  for (const auto& one : all) list.push_back(tensor(one));
  return list;
}

std::vector<Tensor> moved(const std::string& plugin, const Options& options, const json& golden, double lr) {
  std::vector<ditto::OptimizedParameter> parameters;
  for (const auto& weight : list_of(golden["before"]))
    parameters.push_back({"w" + std::to_string(parameters.size()), weight.requires_grad_(), weight.sizes().vec()});
  const Whole whole;
  const auto optimizer = make_plugin<ditto::Optimizer>("optimizers", plugin, options, {parameters, &whole});
  for (const auto& grads : golden["gradients"]) {
    const auto step = list_of(grads);
    for (size_t i = 0; i < step.size(); ++i) parameters[i].tensor.mutable_grad() = step[i];
    optimizer->step({.lr = lr});
  }
  std::vector<Tensor> after;
  for (const auto& p : parameters) after.push_back(p.tensor.detach());
  return after;
}

}  // namespace

TEST_CASE("vp: other betas make flow_matching's variance-preserving path") {
  for (const auto& golden : values()["vp"]) {
    const auto path = make_plugin<ditto::Scheduler>(
        "schedulers", "vp",
        {{"beta_min", golden["beta_min"].get<double>()}, {"beta_max", golden["beta_max"].get<double>()}});
    CHECK(apart(path->alpha(tensor(golden["t"])), tensor(golden["alpha"])) < 1e-14);
    CHECK(apart(path->sigma(tensor(golden["t"])), tensor(golden["sigma"])) < 1e-14);
  }
}

TEST_CASE("edm: another deviation of the data, other ends and another rho are diffusers'") {
  for (const auto& golden : values()["edm"]) {
    const auto edm = make_plugin<ditto::Scheduler>("schedulers", "edm", options_in(golden["options"]));
    const auto sigma = tensor(golden["sigma"]), grid = tensor(golden["grid"]);
    CHECK(apart(edm->c_in(sigma), tensor(golden["c_in"])) < 1e-14);
    CHECK(apart(edm->c_skip(sigma), tensor(golden["c_skip"])) < 1e-14);
    CHECK(apart(edm->c_out(sigma), tensor(golden["c_out"])) < 1e-14);
    CHECK(apart(torch::tensor(edm->time_grid(grid.size(0) - 1), torch::kDouble), grid) < 1e-12);
  }
}

TEST_CASE("rectified_flow: other tokens, shifts and patches are Flux's") {
  for (const auto& golden : values()["flux"])
    for (const char* kind : {"exponential", "linear"}) {
      auto options = options_in(golden["options"]);
      options["shift_by"] = std::string(kind);
      const auto side = golden["side"].get<int64_t>();
      const auto flow = make_plugin<ditto::Scheduler>("schedulers", "rectified_flow", options);
      const auto levels = tensor(golden[kind]);
      const auto ours = flow->for_size({16, side, side})->time_grid(levels.size(0) - 1);
      CHECK(apart(torch::tensor(ours, torch::kDouble), levels) < 2e-7);  // theirs are float32
    }
}

TEST_CASE("muon's iterations, and adafactor's scale, clipping and decay, are torch.optim's") {
  for (const auto& golden : values()["optimizers"]) {
    const auto plugin = golden["plugin"].get<std::string>();
    const auto ours = moved(plugin, options_in(golden["options"]), golden, golden["lr"].get<double>());
    const auto theirs = list_of(golden["after"]);
    REQUIRE(ours.size() == theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) CHECK(apart(ours[i], theirs[i]) < 1e-12);
  }
}

TEST_CASE("muon's adamw_lr is a share of its learning rate, for what AdamW takes of it") {
  const auto& golden = values()["optimizers"][0];
  const double share = 0.3, lr = golden["lr"].get<double>();
  const Options betas{{"beta1", 0.9}, {"beta2", 0.95}};
  auto all_adamw = betas;
  all_adamw["adamw"] = std::vector<std::string>{"w0", "w1"};
  all_adamw["adamw_lr"] = share;
  const auto ours = moved("muon", all_adamw, golden, lr), adamw = moved("adamw", betas, golden, share * lr);
  for (size_t i = 0; i < ours.size(); ++i) CHECK(apart(ours[i], adamw[i]) < 1e-14);
}
