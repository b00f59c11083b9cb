// What the schedules and samplers promise by themselves, and what they refuse.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/sampler.h>
#include <support/open_plugin.h>

using ditto::test::make_plugin;
using torch::Tensor;

namespace {

using Options = std::map<std::string, ditto::OptionValue>;

std::shared_ptr<ditto::Scheduler> schedule(const std::string& name, const Options& options = {}) {
  return make_plugin<ditto::Scheduler>("schedulers", name, options);
}
std::shared_ptr<ditto::Sampler> sampler(const std::string& name) {
  return make_plugin<ditto::Sampler>("samplers", name);
}

Tensor even_numbers(int64_t n) { return (torch::arange(n, at::kDouble) + 0.5) / n; }

template <class Call>
std::string message(ditto::ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const ditto::Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("x_t is recovered as data and noise by every schedule") {
  const auto clean = torch::sin(torch::arange(24, at::kDouble)).view({2, 3, 2, 2});
  const auto noise = torch::cos(3 * torch::arange(24, at::kDouble)).view({2, 3, 2, 2});
  for (const auto& scheduler :
       {schedule("rectified_flow"), schedule("rectified_flow", {{"convention", std::string("data_at_one")}}),
        schedule("iddpm", {{"variance", std::string("fixed_large")}})}) {
    const auto t = scheduler->times(torch::tensor({0.3, 0.8}, at::kDouble));
    const auto x = scheduler->corrupt(clean, noise, t), prediction = scheduler->target(clean, noise, t);
    CHECK(torch::allclose(scheduler->to_clean(prediction, x, t), clean, 1e-10, 1e-10));
    CHECK(torch::allclose(scheduler->to_noise(prediction, x, t), noise, 1e-10, 1e-10));
    CHECK(scheduler->losses(prediction, clean, noise, t).at("mse").abs().max().item<double>() == 0);
    const auto off = scheduler->losses(prediction + 0.5, clean, noise, t).at("mse");
    CHECK(torch::allclose(off, torch::full({2}, 0.25, at::kDouble)));
  }
}

TEST_CASE("rectified_flow: the two conventions are the same training") {
  const Options common{{"times", std::string("logit_normal")}, {"mean", -0.3}, {"std", 1.2}, {"shift", 3.0}};
  Options reversed = common;
  reversed["convention"] = std::string("data_at_one");
  const auto a = schedule("rectified_flow", common), b = schedule("rectified_flow", reversed);
  const auto u = even_numbers(100), t = a->times(u), r = b->times(u);
  CHECK(torch::allclose(a->sigma(t), b->sigma(r), 1e-12, 1e-12));
  CHECK(torch::allclose(a->alpha(t), b->alpha(r), 1e-12, 1e-12));
  const auto x = torch::ones({1, 1}), z = torch::full({1, 1}, 3.0);
  CHECK(a->target(x, z, t).item<double>() == 2);
  CHECK(b->target(x, z, r).item<double>() == -2);
  CHECK(a->time_grid(4).front() == 1);
  CHECK(a->time_grid(4).back() == 0);
  CHECK(b->time_grid(4).front() == 0);
  CHECK(b->time_grid(4).back() == 1);
  for (size_t i = 0; i < 5; ++i) CHECK(a->time_grid(4)[i] == doctest::Approx(1 - b->time_grid(4)[i]));
}

TEST_CASE("rectified_flow: training times follow their distribution") {
  const auto u = even_numbers(20001);
  CHECK(torch::allclose(schedule("rectified_flow")->times(u), u));
  const auto logit_normal =
      schedule("rectified_flow", {{"times", std::string("logit_normal")}, {"mean", 0.5}, {"std", 0.8}});
  const auto logit = torch::logit(logit_normal->times(u));
  CHECK(logit.mean().item<double>() == doctest::Approx(0.5).epsilon(1e-3));
  CHECK(logit.std().item<double>() == doctest::Approx(0.8).epsilon(1e-3));
  const auto shifted = schedule("rectified_flow", {{"shift", 3.0}})->times(u);
  CHECK(torch::allclose(shifted, 3 * u / (1 + 2 * u), 1e-12, 1e-12));
}

TEST_CASE("rectified_flow: the model sees the time in the unit it was trained with") {
  const auto t = torch::full({1}, 0.25, at::kDouble);
  CHECK(schedule("rectified_flow")->c_noise(t).item<double>() == 250);
  CHECK(schedule("rectified_flow", {{"model_time_scale", 1.0}})->c_noise(t).item<double>() == 0.25);
}

TEST_CASE("iddpm: training draws every time equally often, and the model sees it as it is") {
  const auto scheduler = schedule("iddpm");
  const auto times = scheduler->times(even_numbers(4000));
  CHECK(torch::equal(times, torch::arange(1000, at::kDouble).repeat_interleave(4)));
  CHECK(torch::equal(scheduler->c_noise(times), times));
  CHECK(scheduler->times(torch::full({1}, 1 - 1e-17, at::kDouble)).item<double>() == 999);
}

TEST_CASE("sampling starts from noise of the size that the schedule has there") {
  for (const char* name : {"iddpm", "rectified_flow"})
    CHECK(schedule(name)->start_scale(schedule(name)->time_grid(10)[0]) == 1);
}

TEST_CASE("iddpm: the variance's half of the prediction gets no gradient from mse, and epsilon none from vb") {
  const auto scheduler = schedule("iddpm");
  const auto clean = torch::zeros({1, 1, 2, 2}), noise = torch::ones({1, 1, 2, 2});
  for (const auto& [loss, silent] : std::map<std::string, int64_t>{{"mse", 1}, {"vb", 0}}) {
    const auto prediction = torch::full({1, 2, 2, 2}, 0.25).requires_grad_();
    scheduler->losses(prediction, clean, noise, torch::full({1}, 10.0, at::kDouble)).at(loss).sum().backward();
    const auto gradient = prediction.grad()[0];
    CHECK(gradient[silent].abs().max().item<double>() == 0);
    CHECK(gradient[1 - silent].abs().min().item<double>() > 0);
  }
}

TEST_CASE("bf16 predictions are compared in fp32") {
  const auto clean = torch::zeros({2, 1, 2, 2}), noise = torch::ones({2, 1, 2, 2});
  const auto t = torch::tensor({0.0, 500.0}, at::kDouble);
  const auto losses = schedule("iddpm")->losses(torch::full({2, 2, 2, 2}, 0.5).to(at::kBFloat16), clean, noise, t);
  for (const auto& [name, value] : losses) {
    CHECK((value.scalar_type() == at::kFloat));
    CHECK(value.isfinite().all().item<bool>());
  }
  CHECK(losses.at("mse")[0].item<double>() == 0.25);
}

TEST_CASE("ancestral refuses a schedule without Gaussian steps, by name") {
  const auto ancestral = sampler("ancestral");
  const auto flow = schedule("rectified_flow"), chain = schedule("iddpm");
  CHECK(has(ancestral->refuses(*flow), "Gaussian steps"));
  CHECK(ancestral->refuses(*chain).empty());
  for (const char* name : {"ddim", "euler", "heun"}) {
    CHECK(sampler(name)->refuses(*flow).empty());
    CHECK(sampler(name)->refuses(*chain).empty());
  }
  const ditto::SamplingRequest request{*flow, [](const Tensor& x, double) { return x; }, torch::ones({1, 1}), 2, {},
                                       {}};
  CHECK(has(message(ditto::ErrorKind::config, [&] { ancestral->sample(request); }), "'ancestral'"));
  CHECK(has(message(ditto::ErrorKind::config,
                    [&] {
                      flow->step_back(request.start, request.start, {1, 0}, 0);
                    }),
            "step back"));
}

TEST_CASE("a prediction of the wrong size is refused with both sizes") {
  const auto chain = schedule("iddpm");
  const auto x = torch::ones({1, 3, 2, 2});
  const ditto::SamplingRequest request{*chain, [](const Tensor& x, double) { return x; }, x, 2, {}, {}};
  const auto text = message(ditto::ErrorKind::shape, [&] { sampler("ddim")->sample(request); });
  CHECK(has(text, "[1, 3, 2, 2]"));
  CHECK(has(text, "[1, 6, 2, 2]"));
  const auto t = torch::zeros({1}, at::kDouble);
  CHECK(has(message(ditto::ErrorKind::shape, [&] { chain->losses(x, x, x, t); }), "needs 6"));
  CHECK(has(message(ditto::ErrorKind::shape,
                    [&] {
                      schedule("rectified_flow")->losses(torch::ones({1, 6, 2, 2}), x, x, t);
                    }),
            "[1, 6, 2, 2]"));
}

TEST_CASE("a stochastic sampler without a source of noise is refused") {
  const auto chain = schedule("iddpm", {{"variance", std::string("fixed_small")}});
  const ditto::SamplingRequest request{*chain, [](const Tensor& x, double) { return x; }, torch::ones({1, 1}), 4, {},
                                       {}};
  CHECK(has(message(ditto::ErrorKind::config, [&] { sampler("ancestral")->sample(request); }), "noise"));
}

TEST_CASE("iddpm refuses step counts that its chain does not have, and says which it has") {
  const auto even = schedule("iddpm"), strided = schedule("iddpm", {{"spacing", std::string("ddim")}});
  for (const int64_t steps : {0, 1, 1001}) {
    CHECK(has(message(ditto::ErrorKind::config, [&] { even->time_grid(steps); }), "2 to 1000"));
  }
  CHECK(has(message(ditto::ErrorKind::config, [&] { strided->time_grid(499); }), "use 500"));
  const auto leading = schedule("iddpm", {{"spacing", std::string("leading")}});
  for (const int64_t steps : {0, 1000, 1001})  // 1000 of them from 1 on would end at 1000
    CHECK(has(message(ditto::ErrorKind::config, [&] { leading->time_grid(steps); }), "of 1000 times from 1 on"));
  CHECK(leading->time_grid(999).front() == 999);
  CHECK(has(message(ditto::ErrorKind::config, [&] { schedule("rectified_flow")->time_grid(0); }), "1 or more"));
}

TEST_CASE("options out of range are refused at their place") {
  const auto refused = [](const char* name, const Options& options) {
    return message(ditto::ErrorKind::config, [&] { schedule(name, options); });
  };
  CHECK(has(refused("iddpm", {{"timesteps", int64_t{10}}}), "betas are below 1"));
  CHECK(has(refused("iddpm", {{"variance", std::string("fixed_smal")}}), "fixed_small"));
  const std::string spacing = "leading";
  CHECK(has(refused("iddpm", {{"steps_offset", int64_t{2}}}), "is of spacing = \"leading\""));
  CHECK(has(refused("iddpm", {{"spacing", spacing}, {"steps_offset", int64_t{0}}}), "set_alpha_to_one = true"));
  CHECK(has(refused("rectified_flow", {{"shift", 0.0}}), "above 0"));
  CHECK(has(refused("rectified_flow", {{"convention", std::string("noise_at_on")}}), "did you mean \"noise_at_one\""));
  CHECK(has(message(ditto::ErrorKind::config,
                    [] {
                      make_plugin<ditto::Sampler>("samplers", "ddim", {{"eta", 1.5}});
                    }),
            "eta"));
}
