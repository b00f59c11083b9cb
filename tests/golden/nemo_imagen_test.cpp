// Claim (numbers): The losses and gradients of ddpm_continuous and edm, and whole trajectories of them with dynamic
// thresholds, against NeMo Imagen's precond.py and sampler.py: make_nemo_imagen.py. Where NeMo's DDPM sampler is wrong
// (networks of x_start, sr-unet), against the definition.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "core/sample/clip.h"

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

const json& golden() {
  static const json values = ditto::test::read_json("tests/golden/nemo_imagen.json");
  return values;
}
Tensor given(const char* name) { return tensor(golden()["given"][name]); }
std::string text(const json& one, const char* key) { return one.at(key).get<std::string>(); }

// The made-up network of make_nemo_imagen.py; `told_BSE` is its text, `low` the picture to enlarge or none.
struct Unet {
  Tensor mixed = given("mixed");

  Tensor operator()(const Tensor& x, const Tensor& time_B, const Tensor& told_BSE, const Tensor& low = {}) const {
    const auto told_B = (told_BSE * given("mask").unsqueeze(-1)).mean(at::IntArrayRef{1, 2});
    auto out = torch::einsum("ij,bjhw->bihw", {mixed, x}) + (torch::sigmoid(time_B) + told_B).view({-1, 1, 1, 1});
    if (low.defined()) out = out + 0.7 * low;
    return 0.8 * torch::sin(2 * out) - 0.5 * x.flip(-1);
  }
};

std::shared_ptr<ditto::Scheduler> schedule_of(const json& one, const Options& more = {}) {
  Options options = more;
  if (one.contains("loss_type")) options["loss"] = text(one, "loss_type");
  if (one["type"] == "EDM") return make_plugin<ditto::Scheduler>("schedulers", "edm", options);
  options["log_snr"] = text(one, "noise_schedule");
  options["prediction"] = std::string(one["pred_objective"] == "noise" ? "epsilon" : "x0");
  return make_plugin<ditto::Scheduler>("schedulers", "ddpm_continuous", options);
}

// A picture to enlarge with noise of these levels, as EDM hands it in, and the time that it adds.
struct Low {
  Tensor picture, time_B;
};
Low augmented(const ditto::Scheduler& edm, const Tensor& noise, const Tensor& level_B) {
  return {edm.model_input(edm.corrupt(given("low"), noise, level_B), level_B), edm.c_noise(level_B)};
}

// What sampling makes of the file's start: the guided network with dynamic thresholds.
Tensor sampled(const json& one) {
  const auto scheduler = schedule_of(one);
  const bool enlarges = one["unet_type"] != "base", noisy = one.value("noise_cond_aug", false);
  const auto scale = one["guidance"].get<double>();
  const auto text = given("text"), draws = given("low_draws"), noise = given("steps");
  const Unet unet;
  int64_t drawn = 0;
  const auto denoise = [&](const Tensor& x, double t) {
    const auto time = torch::full({x.size(0)}, t, at::kDouble);
    const auto predicted = [&](const Tensor& told) {
      Low low{enlarges ? given("low") : Tensor(), torch::zeros_like(time)};
      if (noisy) low = augmented(*scheduler, draws[drawn++], torch::full_like(time, 0.002));
      const auto raw = unet(scheduler->model_input(x, time), scheduler->c_noise(time) + low.time_B, told, low.picture);
      return scheduler->precondition(raw, x, time);
    };
    const auto with = predicted(text);
    if (scale == 1) return with;
    const auto without = predicted(torch::zeros_like(text));
    return without + scale * (with - without);
  };
  ditto::Recipe recipe;
  recipe.sampler_clip = "dynamic";
  const auto steps = noise.size(0);
  ditto::SamplingRequest request{*scheduler, denoise, given("start"), steps, [&](int64_t step) { return noise[step]; },
                                 {}};
  request.start = request.start * scheduler->start_scale(scheduler->time_grid(steps).front());
  request.limit = ditto::clip_of(recipe);
  return make_plugin<ditto::Sampler>("samplers", one["type"] == "EDM" ? "heun" : "ancestral")->sample(request);
}

}  // namespace

TEST_CASE("ddpm_continuous and edm: NeMo Imagen's losses, and their gradients") {
  const auto clean = given("clean"), noise = given("noise");
  for (const auto& one : golden()["losses"]) {
    CAPTURE(one.dump().substr(0, 120));
    const bool is_edm = one["type"] == "EDM";
    const auto scheduler = schedule_of(one, is_edm ? Options{{"sigma_data", 0.4}} : Options{});
    const auto t_B = given(is_edm ? "sigmas" : "times");
    Low low{{}, torch::zeros_like(t_B)};
    if (one.value("unet_type", "base") == "sr") low = augmented(*scheduler, given("low_noise"), given("low_sigmas"));
    Unet unet;
    unet.mixed.requires_grad_();
    const auto x = scheduler->corrupt(clean, noise, t_B);
    const auto raw =
        unet(scheduler->model_input(x, t_B), scheduler->c_noise(t_B) + low.time_B, given("text"), low.picture);
    const auto losses = scheduler->losses(scheduler->precondition(raw, x, t_B), clean, noise, t_B);
    REQUIRE(losses.size() == 1);
    const auto loss = losses.begin()->second.mean();
    loss.backward();
    CHECK(apart(loss.detach(), tensor(one["loss"])) < 1e-10);
    CHECK(apart(unet.mixed.grad(), tensor(one["gradient"])) < 1e-10);
  }
}

TEST_CASE("ancestral and heun with dynamic thresholds: NeMo Imagen's trajectories, base and sr, and the right ones") {
  int64_t wrong = 0;
  for (const auto& one : golden()["trajectories"]) {
    CAPTURE(one["type"].get<std::string>());
    CAPTURE(one["unet_type"].get<std::string>());
    CAPTURE(one.value("noise_schedule", "").append(one.value("pred_objective", "")));
    const auto end = sampled(one);
    CHECK(apart(end, tensor(one["end"])) < 1e-9);
    if (one.contains("wrong")) CHECK(apart(end, tensor(one["wrong"])) > 0.1);
    wrong += one.contains("wrong") || one.contains("theirs");
  }
  CHECK(wrong == 5);  // four of networks of x_start, and sr-unet
}
