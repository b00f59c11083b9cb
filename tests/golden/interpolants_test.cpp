// Claim (numbers): The schedules vp, gvp and ddpm_continuous, and the sampler sde_euler, against SiT's and NeMo's
// own programs: make_interpolants.py. edm against its paper.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

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

const json& interpolants() {
  static const json values = ditto::test::read_json("tests/golden/interpolants.json");
  return values;
}

// The made-up network of make_interpolants.py.
Tensor network(const Tensor& x, const Tensor& t_B) {
  return 0.8 * torch::sin(2 * x.flip(-1) + 3 * ditto::spread(t_B, x)) - 0.5 * x;
}
Tensor network(const Tensor& x, double t) { return network(x, torch::full({x.size(0)}, t, at::kDouble)); }

std::shared_ptr<ditto::Scheduler> schedule_of(const json& one) {
  const auto name = one["scheduler"].get<std::string>();
  if (name == "rectified_flow")
    return make_plugin<ditto::Scheduler>("schedulers", name, {{"convention", std::string("data_at_one")}});
  Options options{{"prediction", one["prediction"].get<std::string>()}, {"weight", one["weight"].get<std::string>()}};
  if (name == "gvp" && one["prediction"] != "velocity") options["train_eps"] = options["sample_eps"] = 1e-3;
  return make_plugin<ditto::Scheduler>("schedulers", name, options);
}

Tensor sampled(const std::string& sampler, const Options& options, const ditto::Scheduler& scheduler) {
  const auto noise = tensor(interpolants()["sit"]["noise"]);
  const ditto::SamplingRequest request{scheduler,
                                       [](const Tensor& x, double t) { return network(x, t); },
                                       tensor(interpolants()["sit"]["start"]),
                                       noise.size(0),
                                       [&](int64_t step) { return noise[step]; },
                                       {}};
  return make_plugin<ditto::Sampler>("samplers", sampler, options)->sample(request);
}

}  // namespace

TEST_CASE("vp and gvp: SiT's losses of velocity, noise and score, with its weights") {
  const auto& sit = interpolants()["sit"];
  const auto t = tensor(sit["times"]), clean = tensor(sit["clean"]), eps = tensor(sit["eps"]);
  for (const auto& one : sit["losses"]) {
    CAPTURE(one["scheduler"].get<std::string>());
    CAPTURE(one["prediction"].get<std::string>());
    CAPTURE(one["weight"].get<std::string>());
    const auto scheduler = schedule_of(one);
    const auto losses = scheduler->losses(network(scheduler->corrupt(clean, eps, t), t), clean, eps, t);
    CHECK(apart(losses.at("mse"), tensor(one["loss"])) < kTolerance);
  }
}

TEST_CASE("vp and gvp with rk4: SiT's probability flow") {
  for (const auto& one : interpolants()["sit"]["ode"]) {
    CAPTURE(one["scheduler"].get<std::string>());
    CAPTURE(one["prediction"].get<std::string>());
    CHECK(apart(sampled("rk4", {}, *schedule_of(one)), tensor(one["end"])) < kTolerance);
  }
}

TEST_CASE("sde_euler is SiT's, with its diffusions and last steps") {
  for (const auto& one : interpolants()["sit"]["sde"]) {
    CAPTURE(one["scheduler"].get<std::string>());
    CAPTURE(one["diffusion"].get<std::string>());
    CAPTURE(one["last_step"].get<std::string>());
    const Options options{{"diffusion", one["diffusion"].get<std::string>()},
                          {"last_step", one["last_step"].get<std::string>()},
                          {"norm", 0.7},
                          {"last_step_size", 0.04}};
    CHECK(apart(sampled("sde_euler", options, *schedule_of(one)), tensor(one["end"])) < kTolerance);
  }
}

TEST_CASE("ddpm_continuous: NeMo Imagen's log-SNR, what its model sees, and its posterior") {
  const auto& nemo = interpolants()["nemo"];
  const auto t = tensor(nemo["times"]), x = tensor(nemo["x"]), clean = tensor(nemo["clean"]);
  for (const auto& one : nemo["cases"]) {
    CAPTURE(one["log_snr"].get<std::string>());
    const auto scheduler = make_plugin<ditto::Scheduler>(
        "schedulers", "ddpm_continuous",
        {{"log_snr", one["log_snr"].get<std::string>()}, {"prediction", std::string("x0")}});
    CHECK(apart(scheduler->alpha(t), tensor(one["alpha"])) < kTolerance);
    CHECK(apart(scheduler->sigma(t), tensor(one["sigma"])) < kTolerance);
    CHECK(apart(scheduler->c_noise(t), tensor(one["condition"])) < kTolerance);
    const auto mean = tensor(one["mean"]), log_variance = tensor(one["log_variance"]);
    for (int64_t i = 0; i < t.size(0); ++i) {
      const auto row = [i](const Tensor& of) { return of.slice(0, i, i + 1); };
      const double time = t[i].item<double>();
      const auto back = scheduler->step_back(row(clean), row(x), {time, time / 2}, 0);
      CHECK(apart(back.mean, row(mean)) < kTolerance);
      CHECK(apart(back.log_variance, log_variance[i].expand_as(row(x))) < kTolerance);
    }
  }
}

TEST_CASE("edm: preconditioning, weight and training noise are the paper's, and its losses NeMo's") {
  const double data = 0.5, mean = -1.2, std = 1.2;
  const auto edm = make_plugin<ditto::Scheduler>("schedulers", "edm");
  const auto u = torch::tensor({0.1, 0.5, 0.9}, at::kDouble);
  const auto t = edm->times(u), total = t.square() + data * data;
  CHECK(apart(t, torch::exp(mean + std * torch::special_ndtri(u))) < 1e-13);
  CHECK(apart(edm->c_skip(t), data * data / total) < 1e-14);
  CHECK(apart(edm->c_out(t), t * data / total.sqrt()) < 1e-14);
  CHECK(apart(edm->c_in(t), 1 / total.sqrt()) < 1e-14);
  CHECK(apart(edm->c_noise(t), t.log() / 4) < 1e-13);
  const auto weight = total / (t * data).square();
  CHECK(apart(edm->weight(t), weight) < 1e-14);
  // Of 0.02 and 3 away, each side of huber's bend.
  const auto clean = torch::zeros({3, 1, 1, 2}, at::kDouble), noise = torch::ones_like(clean);
  const auto off = torch::tensor({0.02, 3.0}, at::kDouble).expand_as(clean).contiguous();
  const auto scaled = weight.sqrt().view({3, 1, 1, 1}) * off;
  const auto loss = [&](const char* kind) {
    const auto made = make_plugin<ditto::Scheduler>("schedulers", "edm", {{"loss", std::string(kind)}});
    return made->losses(off, clean, noise, t).begin()->second;
  };
  CHECK(apart(loss("l2"), scaled.square().flatten(1).mean(1)) < 1e-14);
  CHECK(apart(loss("l1"), scaled.abs().flatten(1).mean(1)) < 1e-14);
  CHECK(apart(loss("huber"), torch::smooth_l1_loss(scaled, clean, at::Reduction::None).flatten(1).mean(1)) < 1e-14);
}

TEST_CASE("schedules refuse what their predictions cannot tell") {
  const auto message = [](const char* name, const Options& options) -> std::string {
    try {
      make_plugin<ditto::Scheduler>("schedulers", name, options);
    } catch (const ditto::Error& error) {
      return error.what();
    }
    return {};
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(message("gvp", {{"prediction", std::string("noise")}}), "tells nothing of the data at t = 0"));
  CHECK(has(message("gvp", {{"weight", std::string("velocity")}}), "is of score and noise"));
  CHECK(has(message("vp", {{"train_eps", 0.0}}), "falls without bound"));
  CHECK(has(message("edm", {{"sigma_max", 0.001}}), "is not above scheduler.sigma_min"));
  CHECK(has(message("iddpm", {{"zero_terminal_snr", true}}), "prediction = \"v\""));
}
