// The schedules and samplers against diffusers and the definitions of the papers: values made by schedulers_test.py.
//
// Claim (numbers): Schedules, losses and whole trajectories are those of diffusers, or of the papers.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/sampler.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>
#include "core/config/recipe.h"
#include "core/sample/clip.h"

using ditto::test::make_plugin;
using ditto::test::tensor;
using nlohmann::json;
using torch::Tensor;

namespace {

const json& golden() {
  static const json values = ditto::test::read_json("tests/golden/schedulers.json");
  return values;
}

// Largest difference, relative to the largest value.
double distance(const Tensor& ours, const Tensor& theirs) {
  REQUIRE(ours.sizes() == theirs.sizes());
  const auto wide = ours.to(at::kDouble), reference = theirs.to(at::kDouble);
  return ((wide - reference).abs().max() / reference.abs().max()).item<double>();
}

std::shared_ptr<ditto::Scheduler> iddpm(const std::string& variance, const std::string& spacing = "even") {
  return make_plugin<ditto::Scheduler>("schedulers", "iddpm", {{"variance", variance}, {"spacing", spacing}});
}

std::vector<double> ascending_times(const ditto::Scheduler& scheduler, int64_t steps) {
  auto grid = scheduler.time_grid(steps);
  REQUIRE(grid.back() == -1);
  grid.pop_back();
  return {grid.rbegin(), grid.rend()};
}

// The made-up networks of schedulers_test.py.
Tensor chain_model(const Tensor& x, double t) {
  const auto ripple = 0.2 * (1 - t / 1000) * torch::sin(2 * x.flip(-1) + t / 300);
  return torch::cat({std::tanh(t / 200 + 0.1) * x + ripple, 0.5 * torch::cos(3 * x + t / 100)}, 1);
}
Tensor flow_model(const Tensor& x, double t) { return 0.9 * x - 0.5 * torch::sin(2 * x.flip(-1) + t / 500); }

// The whole trajectory of trajectory.start through the chain's network, with trajectory.noise.
Tensor run_chain(const std::string& sampler, double eta, const ditto::Scheduler& scheduler, int64_t steps = 50,
                 const std::function<Tensor(const Tensor&)>& limit = {}) {
  const auto start = tensor(golden()["trajectory"]["start"]), noise = tensor(golden()["trajectory"]["noise"]);
  std::map<std::string, ditto::OptionValue> options;
  if (sampler == "ddim") options["eta"] = eta;
  const auto channels = scheduler.out_channels(start.size(1));
  ditto::SamplingRequest request{scheduler,
                                 [&](const Tensor& x, double t) { return chain_model(x, t).slice(1, 0, channels); },
                                 start,
                                 steps,
                                 [&](int64_t step) { return noise[step]; },
                                 {},
                                 limit};
  return make_plugin<ditto::Sampler>("samplers", sampler, options)->sample(request);
}

}  // namespace

TEST_CASE("iddpm: betas and their products are the linear schedule's") {
  const auto scheduler = iddpm("fixed_small");
  const auto t = torch::tensor({0.0, 1.0, 500.0, 999.0}, at::kDouble), before = t - 1;
  const auto abar = scheduler->alpha(t).square();
  CHECK(distance(abar, tensor(golden()["abar"])) < 1e-12);
  CHECK(distance(1 - abar / scheduler->alpha(before).square(), tensor(golden()["betas"])) < 1e-12);
  CHECK(distance(scheduler->sigma(t).square() + abar, torch::ones({4}, at::kDouble)) < 1e-15);
  CHECK(scheduler->alpha(torch::full({1}, -1.0)).item<double>() == 1);
  CHECK(scheduler->sigma(torch::full({1}, -1.0)).item<double>() == 0);
}

TEST_CASE("iddpm: even spacing keeps the times of the definition and of diffusers' linspace") {
  const auto scheduler = iddpm("fixed_small");
  for (const auto& [count, times] : golden()["even"].items()) {
    CAPTURE(count);
    const auto ours = ascending_times(*scheduler, std::stoll(count));
    CHECK(ours == times.get<std::vector<double>>());
    CHECK(ours == golden()["even_diffusers"][count].get<std::vector<double>>());
  }
}

TEST_CASE("iddpm: ddim spacing is an integer stride, as diffusers' leading") {
  const auto scheduler = iddpm("fixed_small", "ddim");
  CHECK(ascending_times(*scheduler, 50) == golden()["ddim50"].get<std::vector<double>>());
  CHECK(ascending_times(*scheduler, 334).back() == 999);  // a stride that does not divide 1000
}

TEST_CASE("iddpm: a step back in the spaced chain has the posterior's mean and the interpolated variance") {
  const auto& step = golden()["step"];
  const auto x = tensor(step["x"]), prediction = tensor(step["prediction"]);
  const auto scheduler = iddpm("learned_range");
  const auto grid = scheduler->time_grid(250);
  for (const auto& wanted : step["learned_range"]) {
    CAPTURE(wanted["index"].get<int>());
    const auto got = scheduler->step_back(prediction, x, grid, 249 - wanted["index"].get<int64_t>());
    CHECK(distance(got.mean, tensor(wanted["mean"])) < 1e-11);
    CHECK(distance(got.log_variance, tensor(wanted["log_variance"])) < 1e-11);
  }
}

TEST_CASE("iddpm: fixed variances of the spaced chain are diffusers'") {
  const auto x = tensor(golden()["step"]["x"]);
  for (const char* kind : {"fixed_small", "fixed_large"}) {
    const auto scheduler = iddpm(kind);
    const auto grid = scheduler->time_grid(250);
    for (const auto& wanted : golden()["step"][kind]) {
      CAPTURE(wanted["index"].get<int>());
      const auto got = scheduler->step_back(x, x, grid, 249 - wanted["index"].get<int64_t>());
      CHECK(distance(got.log_variance.exp(), torch::full_like(x, wanted["variance"].get<double>())) < 1e-11);
    }
  }
}

TEST_CASE("iddpm: the hybrid loss and its gradient are the definition's") {
  const auto& hybrid = golden()["hybrid"];
  for (const auto type : {at::kDouble, at::kFloat}) {
    CAPTURE(std::string(c10::toString(type)));
    const double tolerance = type == at::kDouble ? 1e-10 : 4e-6;
    const auto prediction = tensor(hybrid["prediction"]).to(type).requires_grad_();
    const auto losses = iddpm("learned_range")
                            ->losses(prediction, tensor(hybrid["clean"]).to(type), tensor(hybrid["noise"]).to(type),
                                     tensor(hybrid["t"]));
    REQUIRE(losses.size() == 2);
    CHECK(distance(losses.at("mse"), tensor(hybrid["mse"])) < tolerance);
    CHECK(distance(losses.at("vb"), tensor(hybrid["vb"])) < tolerance);
    (losses.at("mse") + losses.at("vb")).sum().backward();
    CHECK(distance(prediction.grad(), tensor(hybrid["gradient"])) < tolerance);
  }
}

TEST_CASE("iddpm with ancestral: a whole trajectory is diffusers' DDPMScheduler's") {
  for (const auto& [variance, end] : golden()["trajectory"]["ancestral"].items()) {
    CAPTURE(variance);
    CHECK(distance(run_chain("ancestral", 0, *iddpm(variance)), tensor(end)) < 1e-10);
  }
}

TEST_CASE("iddpm with ddim: a whole trajectory is diffusers' DDIMScheduler's") {
  const auto scheduler = iddpm("fixed_small", "ddim");
  for (const auto& [eta, wanted] : golden()["trajectory"]["ddim"].items()) {
    CAPTURE(eta);
    CHECK(distance(run_chain("ddim", std::stod(eta), *scheduler), tensor(wanted["end"])) < 1e-10);
  }
  // With the float32 tables that diffusers has by itself.
  CHECK(distance(run_chain("ddim", 0, *scheduler), tensor(golden()["trajectory"]["ddim_as_it_comes"]["end"])) < 1e-5);
}

TEST_CASE("iddpm with leading spacing and ddim: a whole trajectory is that of Stable Diffusion's DDIMScheduler") {
  for (const auto& one : golden()["leading"]) {
    const auto steps = one["steps"].get<int64_t>();
    CAPTURE(steps);
    const bool to_data = one["set_alpha_to_one"].get<bool>();
    const auto scheduler =
        make_plugin<ditto::Scheduler>("schedulers", "iddpm",
                                      {{"variance", std::string("fixed_small")},
                                       {"betas", std::string("scaled_linear")},
                                       {"beta_start", 0.00085},
                                       {"beta_end", 0.012},
                                       {"prediction", std::string(one["prediction"] == "epsilon" ? "epsilon" : "v")},
                                       {"spacing", std::string("leading")},
                                       {"set_alpha_to_one", to_data}});
    auto grid = scheduler->time_grid(steps);
    CHECK(grid.back() == (to_data ? -1 : 0));
    grid.pop_back();
    CHECK(grid == one["times"].get<std::vector<double>>());
    CHECK(distance(run_chain("ddim", 0, *scheduler, steps), tensor(one["end"])) < 1e-10);
    const auto config = scheduler->foreign_config("diffusers");
    CHECK((config.at("steps_offset") == ditto::OptionValue(int64_t{1})));
    CHECK((config.at("set_alpha_to_one") == ditto::OptionValue(to_data)));
    CHECK((config.at("timestep_spacing") == ditto::OptionValue(std::string("leading"))));
  }
}

TEST_CASE("a model that predicts the variance too gives the same DDIM trajectory") {
  CHECK(distance(run_chain("ddim", 0, *iddpm("learned_range", "ddim")),
                 tensor(golden()["trajectory"]["ddim"]["0.0"]["end"])) < 1e-10);
}

TEST_CASE("rectified_flow with euler is diffusers' FlowMatchEulerDiscreteScheduler") {
  const auto start = tensor(golden()["trajectory"]["start"]).to(at::kFloat);
  for (const auto& wanted : golden()["trajectory"]["flow"]) {
    const auto grid = wanted["grid"].get<std::string>();
    const auto shift = wanted["shift"].get<double>();
    CAPTURE(grid);
    CAPTURE(shift);
    const auto scheduler =
        make_plugin<ditto::Scheduler>("schedulers", "rectified_flow", {{"grid", grid}, {"shift", shift}});
    const auto steps = wanted["steps"].get<int64_t>();
    CHECK(distance(torch::tensor(scheduler->time_grid(steps), at::kDouble), tensor(wanted["sigmas"])) < 2e-7);
    const auto model = [&](const Tensor& x, double t) {
      return flow_model(x, scheduler->c_noise(torch::full({1}, t, at::kDouble)).item<double>());
    };
    const ditto::SamplingRequest request{*scheduler, model, start, steps, {}, {}};
    const auto end = make_plugin<ditto::Sampler>("samplers", "euler")->sample(request);
    CHECK((end.scalar_type() == at::kFloat));
    CHECK(distance(end, tensor(wanted["end"])) < 1e-6);
  }
}

// --- what later systems train with ---

TEST_CASE("iddpm: scaled linear, sigmoid and cosine betas are diffusers', and so is the rescaling to no signal") {
  const auto& chains = golden()["chains"];
  const auto t = tensor(chains["times"]);
  for (const char* betas : {"scaled_linear", "sigmoid", "cosine"}) {
    CAPTURE(std::string(betas));
    const auto scheduler = make_plugin<ditto::Scheduler>("schedulers", "iddpm", {{"betas", std::string(betas)}});
    CHECK(distance(scheduler->alpha(t).square(), tensor(chains[betas])) < 1e-6);  // theirs is fp32
  }
  const auto scheduler = make_plugin<ditto::Scheduler>(
      "schedulers", "iddpm",
      {{"betas", std::string("scaled_linear")}, {"zero_terminal_snr", true}, {"prediction", std::string("v")}});
  CHECK(distance(scheduler->alpha(t).square(), tensor(chains["zero_terminal_snr"])) < 1e-12);
  CHECK(scheduler->alpha(t)[-1].item<double>() == 0);
}

TEST_CASE("iddpm with x0 and v: a whole trajectory is diffusers' DDPMScheduler's") {
  for (const auto& [prediction, end] : golden()["trajectory"]["predicted"].items()) {
    CAPTURE(prediction);
    const auto scheduler = make_plugin<ditto::Scheduler>(
        "schedulers", "iddpm", {{"variance", std::string("fixed_small")}, {"prediction", prediction}});
    CHECK(distance(run_chain("ancestral", 0, *scheduler), tensor(end)) < 1e-10);
  }
}

TEST_CASE("min-SNR weights are those of diffusers' training, by prediction; debiased ones are of the same errors") {
  const auto& wanted = golden()["min_snr"];
  const auto t = tensor(wanted["times"]);
  const auto weight = [&](const std::string& prediction, const std::string& kind) {
    return make_plugin<ditto::Scheduler>("schedulers", "iddpm", {{"prediction", prediction}, {"weight", kind}})
        ->weight(t);
  };
  for (const char* prediction : {"epsilon", "x0", "v"}) {
    CAPTURE(std::string(prediction));
    CHECK(distance(weight(prediction, "min_snr"), tensor(wanted[prediction])) < 1e-6);  // theirs is fp32
  }
  const auto snr = weight("x0", "debiased").square();
  CHECK(distance(weight("epsilon", "debiased"), snr.rsqrt()) < 1e-12);
  CHECK(distance(weight("v", "debiased"), snr.sqrt() / (snr + 1)) < 1e-12);
}

TEST_CASE("dynamic thresholds and clipping are diffusers': whole trajectories of DDPM") {
  const auto& wanted = golden()["trajectory"]["limits"];
  for (const auto& [kind, limits] : std::map<std::string, std::string>{
           {"dynamic", "clip = \"dynamic\"\npercentile = 0.9\n"}, {"static", "clip = \"static\"\n"}}) {
    CAPTURE(kind);
    const auto recipe = ditto::Recipe::parse("[sampler]\nplugin = \"ancestral\"\n" + limits, "test");
    const auto steps = wanted["steps"].get<int64_t>();
    CHECK(distance(run_chain("ancestral", 0, *iddpm("fixed_small"), steps, ditto::clip_of(recipe)),
                   tensor(wanted[kind])) < 1e-10);
    CHECK(distance(run_chain("ancestral", 0, *iddpm("fixed_small"), steps), tensor(wanted[kind])) > 1e-3);
  }
}

TEST_CASE("a limit leaves the variance that a model predicts as it is") {
  const auto none = [](const Tensor& clean) { return clean; };
  for (const char* variance : {"fixed_small", "learned_range"}) {
    CAPTURE(std::string(variance));
    CHECK(distance(run_chain("ancestral", 0, *iddpm(variance), 20, none),
                   run_chain("ancestral", 0, *iddpm(variance), 20)) < 1e-10);
  }
}

TEST_CASE("rectified_flow: shifts by size are Flux's, Stable Diffusion 3's and Open-Sora's") {
  for (const auto& wanted : golden()["shifted_by_size"]) {
    const auto side = static_cast<int64_t>(std::sqrt(4 * wanted["tokens"].get<double>()));  // tokens of 2 x 2 latents
    for (const char* kind : {"exponential", "linear"}) {
      const auto flow =
          make_plugin<ditto::Scheduler>("schedulers", "rectified_flow", {{"shift_by", std::string(kind)}});
      const auto levels = flow->for_size({16, side, side})->time_grid(wanted["steps"].get<int64_t>());
      CHECK(distance(torch::tensor(levels, at::kDouble), tensor(wanted[kind])) < 2e-7);
    }
  }
  // The root of the ratio of pixels, times that of frames: 1024 x 512 pixels and 4 times the frames, in latents of 1/8.
  const auto flow = make_plugin<ditto::Scheduler>(
      "schedulers", "rectified_flow", {{"shift_by", std::string("area")}, {"shift_base", int64_t{64 * 64}}});
  const double ratio = std::sqrt(2.0 * 4), even = 0.5;
  const auto sized = flow->for_size({4, 4, 128, 64});
  const auto t = sized->times(torch::full({1}, even, at::kDouble)).item<double>();
  CHECK(t == doctest::Approx(ratio * even / (1 + (ratio - 1) * even)).epsilon(1e-14));
  CHECK(flow->times(torch::full({1}, even, at::kDouble)).item<double>() == even);
  CHECK_FALSE(make_plugin<ditto::Scheduler>("schedulers", "rectified_flow")->for_size({4, 8, 8}));
}
