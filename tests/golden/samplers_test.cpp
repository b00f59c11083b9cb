// Claim (numbers): The samplers against k-diffusion, diffusers, torchdiffeq and flow-matching: whole trajectories
// made by samplers_test.py.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include <ditto/guidance.h>
#include <ditto/sampler.h>
#include <support/golden_json.h>
#include <support/open_plugin.h>

using ditto::test::apart;
using ditto::test::make_plugin;
using ditto::test::tensor;
using nlohmann::json;
using torch::Tensor;

namespace {

using Options = std::map<std::string, ditto::OptionValue>;
constexpr double kTolerance = 1e-9;

const json& trajectories() {
  static const json values = ditto::test::read_json("tests/golden/samplers.json");
  return values;
}

std::shared_ptr<ditto::Scheduler> schedule(const std::string& name, const Options& options = {}) {
  return make_plugin<ditto::Scheduler>("schedulers", name, options);
}
std::shared_ptr<ditto::Sampler> sampler(const std::string& name, const Options& options = {}) {
  return make_plugin<ditto::Sampler>("samplers", name, options);
}

// The made-up networks of samplers_test.py: an estimate of the data as the schedule's prediction, and a velocity.
Tensor data_model(const ditto::Scheduler& scheduler, const Tensor& x, double t) {
  const auto [alpha, sigma] = level(scheduler, t);
  const auto scaled = x / (alpha + sigma);
  const auto clean = 0.7 * torch::tanh(scaled) + 0.2 * torch::sin(3 * scaled.flip(-1));
  return scheduler.target(clean, (x - alpha * clean) / sigma, torch::full({x.size(0)}, t, at::kDouble));
}
Tensor velocity_model(const Tensor& x, double t) { return 0.8 * torch::sin(2 * x.flip(-1) + 3 * t) - 0.5 * x; }

// From the file's start, with its noise.
Tensor run(const std::string& name, const Options& options, const ditto::Scheduler& scheduler, double scale = 1) {
  const auto noise = tensor(trajectories()["noise"]);
  const ditto::SamplingRequest request{scheduler,
                                       [&](const Tensor& x, double t) { return data_model(scheduler, x, t); },
                                       scale * tensor(trajectories()["start"]),
                                       noise.size(0),
                                       [&](int64_t step) { return noise[step]; },
                                       {}};
  return sampler(name, options)->sample(request);
}

}  // namespace

TEST_CASE("edm: its grid is k-diffusion's of Karras, and its trajectories are k-diffusion's") {
  const auto& theirs = trajectories()["k_diffusion"];
  const auto edm = schedule("edm");
  const auto sigmas = tensor(theirs["sigmas"]);
  const auto grid = edm->time_grid(sigmas.size(0) - 1);
  CHECK(apart(torch::tensor(grid, at::kDouble), sigmas) < 1e-13);
  const double first = edm->start_scale(grid.front());
  for (const char* name : {"euler", "heun", "dpmpp_2m"}) {
    CAPTURE(std::string(name));
    CHECK(apart(run(name, {}, *edm, first), tensor(theirs[name])) < kTolerance);
  }
  const auto& churned = theirs["heun_edm"];
  Options churn;
  for (const char* key : {"s_churn", "s_tmin", "s_tmax", "s_noise"}) churn[key] = churned[key].get<double>();
  CHECK(apart(run("heun_edm", churn, *edm, first), tensor(churned["end"])) < kTolerance);
  CHECK(run("heun_edm", {}, *edm, first).equal(run("heun", {}, *edm, first)));
  for (const auto& one : theirs["dpmpp_2m_sde"]) {
    CAPTURE(one["eta"].get<double>());
    const Options options{{"eta", one["eta"].get<double>()},
                          {"s_noise", one["s_noise"].get<double>()},
                          {"solver", one["solver_type"].get<std::string>()}};
    CHECK(apart(run("dpmpp_2m_sde", options, *edm, first), tensor(one["end"])) < kTolerance);
  }
}

TEST_CASE("unipc and dpmpp_2m are diffusers' UniPCMultistepScheduler and DPMSolverMultistepScheduler") {
  const auto chain = schedule("iddpm", {{"variance", std::string("fixed_small")}, {"prediction", std::string("x0")}});
  const auto path = schedule("vp");
  for (const auto& one : trajectories()["diffusers"]) {
    const auto name = one["sampler"].get<std::string>(), on = one["scheduler"].get<std::string>();
    Options options;
    if (name == "unipc")
      options = {{"order", one["order"].get<int64_t>()}, {"variant", one["variant"].get<std::string>()}};
    CAPTURE(name);
    CAPTURE(on);
    if (name == "unipc") CAPTURE(one["order"].get<int64_t>());
    CHECK(apart(run(name, options, on == "vp" ? *path : *chain), tensor(one["end"])) < kTolerance);
  }
}

TEST_CASE("dopri5 takes torchdiffeq's steps") {
  const auto straight = schedule("rectified_flow", {{"convention", std::string("data_at_one")}});
  for (const auto& one : trajectories()["torchdiffeq"]) {
    CAPTURE(one["rtol"].get<double>());
    std::map<std::string, double> told;
    ditto::SamplingRequest request{*straight, velocity_model, tensor(one["start"]), 1000, {}, {}};
    request.tell = [&](const std::string& what, double count) { told[what] += count; };
    const Options options{{"rtol", one["rtol"].get<double>()}, {"atol", one["atol"].get<double>()}};
    CHECK(apart(sampler("dopri5", options)->sample(request), tensor(one["end"])) < kTolerance);
    CHECK(told.at("steps") == one["steps"].get<double>());
    CHECK(told.at("steps rejected") == one["rejected"].get<double>());
    CHECK(told.at("evaluations") == 2 + 6 * (told["steps"] + told["steps rejected"]));
  }
}

TEST_CASE("dopri5 says which steps are too few, and takes one sample at a time") {
  const auto straight = schedule("rectified_flow");
  const auto& one = trajectories()["torchdiffeq"][0];
  const auto asked = [&](const Tensor& start) {
    const ditto::SamplingRequest request{*straight, velocity_model, start, 2, {}, {}};
    try {
      sampler("dopri5")->sample(request);
    } catch (const ditto::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(asked(tensor(one["start"])).find("not done after 2 steps") != std::string::npos);
  CHECK(asked(tensor(trajectories()["start"])).find("2 samples") != std::string::npos);
}

TEST_CASE("euler and rk4 on the flow are flow-matching's ODESolver") {
  const auto straight = schedule("rectified_flow", {{"convention", std::string("data_at_one")}});
  const auto start = tensor(trajectories()["start"]);
  for (const auto& [name, end] : trajectories()["flow_matching"].items()) {
    CAPTURE(name);
    const ditto::SamplingRequest request{*straight, velocity_model, start, 12, {}, {}};
    CHECK(apart(sampler(name)->sample(request), tensor(end)) < kTolerance);
  }
}

TEST_CASE("cfg and autoguidance are diffusers' guiders, in an interval of steps too") {
  const auto& guiders = trajectories()["guiders"];
  const auto conditional = tensor(guiders["conditional"]), other = tensor(guiders["other"]);
  const auto flow = schedule("rectified_flow");
  const auto grid = flow->time_grid(10);
  const auto noise = [&](double step) {
    const auto [alpha, sigma] = level(*flow, grid.at(static_cast<size_t>(step)));
    return sigma / alpha;
  };
  for (const char* id : {"cfg", "autoguidance"})
    for (const auto& one : guiders[id]) {
      Options options{{"scale", one["guidance_scale"].get<double>()}};
      if (one.value("use_original_formulation", false)) options["form"] = std::string("weight");
      if (one.contains("guidance_rescale")) options["rescale"] = one["guidance_rescale"].get<double>();
      if (one.contains("start")) {  // from the step that starts to the last one that is guided
        options["to"] = noise(std::floor(10 * one["start"].get<double>() + 1e-9));
        options["from"] = noise(std::floor(10 * one["stop"].get<double>() + 1e-9) - 1);
      }
      const auto guidance = make_plugin<ditto::Guidance>("guidance", id, options, {[](const std::string&) {}});
      for (size_t step = 0; step < one["steps"].size(); ++step) {
        CAPTURE(step);
        const ditto::Batch conditions;
        const auto predicted = guidance->predict({conditional, grid[step], level(*flow, grid[step]), conditions,
                                                  [&](const std::vector<ditto::Evaluation>& wanted) {
                                                    ditto::Tensors made{conditional};
                                                    if (wanted.size() == 2) made.push_back(other);
                                                    return made;
                                                  }});
        CHECK(apart(predicted, tensor(one["steps"][step])) < kTolerance);
      }
    }
}
