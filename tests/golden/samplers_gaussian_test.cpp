// Samplers against the closed form of a Gaussian: for data N(mu, s^2) the best denoiser and the whole flow are known.
//
// Claim (numbers): Samplers reach the exact answer on a Gaussian, and on a mixture of two, at their order of
// accuracy. Also: `samplers_order_test.cpp`
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/sampler.h>
#include <support/open_plugin.h>

using ditto::test::make_plugin;
using torch::Tensor;

namespace {

constexpr double kMean = 0.7, kDeviation = 0.5;
using Options = std::map<std::string, ditto::OptionValue>;

struct Gaussian {
  double mean = kMean, deviation = kDeviation;

  // The schedule's prediction for expected data and expected noise; `target` is linear, so this serves any schedule.
  Tensor predict(const ditto::Scheduler& scheduler, const Tensor& x, double t) const {
    const auto [alpha, sigma] = level(scheduler, t);
    const double variance = deviation * deviation, total = alpha * alpha * variance + sigma * sigma;
    const auto clean = mean + alpha * variance / total * (x - alpha * mean), noise = sigma / total * (x - alpha * mean);
    auto prediction = scheduler.target(clean, noise, torch::full({x.size(0)}, t, at::kDouble));
    if (scheduler.out_channels(x.size(1)) == 2 * x.size(1))
      prediction = torch::cat({prediction, -torch::ones_like(x)}, 1);
    return prediction;
  }
  // Where the probability flow takes x: the same place in units of the standard deviation.
  Tensor flow(const ditto::Scheduler& scheduler, const Tensor& x, double t) const {
    const auto [alpha, sigma] = level(scheduler, t);
    return mean + deviation / std::hypot(alpha * deviation, sigma) * (x - alpha * mean);
  }
};

std::shared_ptr<ditto::Scheduler> schedule(const std::string& name, const Options& options = {}) {
  return make_plugin<ditto::Scheduler>("schedulers", name, options);
}
// A chain long enough that its sampling times can be halved many times.
std::shared_ptr<ditto::Scheduler> long_chain() { return schedule("iddpm", {{"timesteps", int64_t{200000}}}); }

std::shared_ptr<ditto::Sampler> sampler(const std::string& name, const Options& options = {}) {
  return make_plugin<ditto::Sampler>("samplers", name, options);
}

// Largest distance from the exact flow after `steps` steps.
double error(const ditto::Sampler& solver, const ditto::Scheduler& scheduler, int64_t steps) {
  const Gaussian data;
  const auto start = torch::linspace(-2, 2, 9, at::kDouble).view({9, 1, 1, 1});
  const ditto::SamplingRequest request{
      scheduler, [&](const Tensor& x, double t) { return data.predict(scheduler, x, t); }, start, steps, {}, {}};
  const auto exact = data.flow(scheduler, start, scheduler.time_grid(steps).front());
  return (solver.sample(request) - exact).abs().max().item<double>();
}

// The order at which the error falls from `steps` to 2 `steps`.
double order(const ditto::Sampler& solver, const ditto::Scheduler& scheduler, int64_t steps) {
  return std::log2(error(solver, scheduler, steps) / error(solver, scheduler, 2 * steps));
}

// The exact variance of what a sampler that is linear in its noise makes of data with mean 0: the sum of the squares of
// its answers to one unit of each noise it draws.
double variance(const ditto::Sampler& solver, const ditto::Scheduler& scheduler, int64_t steps,
                const ditto::Denoiser& denoise) {
  const auto unit = torch::eye(steps + 1, at::kDouble).view({steps + 1, steps + 1, 1, 1});  // [which noise, sample, …]
  const auto one = [&](int64_t which) { return unit[which].unsqueeze(1); };
  const ditto::SamplingRequest request{scheduler, denoise, one(0), steps, [&](int64_t step) { return one(step + 1); },
                                       {}};
  return solver.sample(request).square().sum().item<double>();
}
double variance(const ditto::Sampler& solver, const ditto::Scheduler& scheduler, int64_t steps) {
  const Gaussian data{0, kDeviation};
  return variance(solver, scheduler, steps, [&](const Tensor& x, double t) { return data.predict(scheduler, x, t); });
}

// Where between its bounds, -1 ... 1, the variance of x_s given x_t lies for Gaussian data: known, since x_0 given x_t
// is Gaussian.
double best_variance(const ditto::Level& from, const ditto::Level& to) {
  const double data = kDeviation * kDeviation, noise = from.sigma * from.sigma;
  const double large = 1 - std::pow(from.alpha / to.alpha, 2), small = large * to.sigma * to.sigma / noise;
  const double clean = data * noise / (from.alpha * from.alpha * data + noise);
  const double best = small + std::pow(large * to.alpha / noise, 2) * clean;
  return to.sigma == 0 ? 0 : 2 * std::log(best / small) / std::log(large / small) - 1;
}

}  // namespace

TEST_CASE("euler and ddim are of first order, heun of second, on every schedule") {
  struct Case {
    const char* name;
    std::shared_ptr<ditto::Scheduler> scheduler;
    int64_t steps;
  };
  const std::vector<Case> cases{
      {"noise_at_one", schedule("rectified_flow"), 64},
      {"data_at_one", schedule("rectified_flow", {{"convention", std::string("data_at_one")}}), 64},
      {"shifted", schedule("rectified_flow", {{"shift", 3.0}}), 64},
      {"iddpm", long_chain(), 128},
  };
  for (const auto& [name, scheduler, steps] : cases) {
    CAPTURE(std::string(name));
    CHECK(order(*sampler("euler"), *scheduler, steps) == doctest::Approx(1).epsilon(0.1));
    CHECK(order(*sampler("ddim"), *scheduler, steps) == doctest::Approx(1).epsilon(0.1));
    CHECK(order(*sampler("heun"), *scheduler, steps) == doctest::Approx(2).epsilon(0.1));
    CHECK(error(*sampler("heun"), *scheduler, steps) < 0.2 * error(*sampler("euler"), *scheduler, steps));
  }
}

TEST_CASE("euler is ddim without noise: both go straight from level to level") {
  for (const auto& scheduler : {schedule("rectified_flow"), schedule("iddpm")})
    CHECK(error(*sampler("euler"), *scheduler, 20) ==
          doctest::Approx(error(*sampler("ddim"), *scheduler, 20)).epsilon(1e-9));
}

TEST_CASE("N steps ask the model N times, and heun 2 N - 1 times, at new points") {
  for (const auto& scheduler :
       {schedule("rectified_flow"), schedule("iddpm", {{"variance", std::string("fixed_small")}})}) {
    for (const auto& [name, evaluations] : std::map<std::string, size_t>{{"euler", 10}, {"ddim", 10}, {"heun", 19}}) {
      CAPTURE(name);
      std::vector<double> times;
      std::vector<int64_t> reported;
      const auto start = torch::ones({2, 1, 2, 2});
      const ditto::SamplingRequest request{
          *scheduler,
          [&](const Tensor& x, double t) {
            times.push_back(t);
            return 0.5 * x;
          },
          start,
          10,
          {},
          [&](int64_t step, int64_t steps) { reported.push_back(100 * steps + step); }};
      const auto end = sampler(name)->sample(request);
      CHECK((end.scalar_type() == at::kFloat));
      CHECK(times.size() == evaluations);
      if (name == "heun") CHECK(times[1] == scheduler->time_grid(10)[1]);  // the second evaluation is at the new time
      CHECK(reported.size() == 10);
      CHECK(reported.front() == 1001);
      CHECK(reported.back() == 1010);
    }
  }
}

TEST_CASE("ancestral sampling and ddim with eta = 1 reach the data's variance as steps grow") {
  const double wanted = kDeviation * kDeviation;
  for (const char* kind : {"fixed_small", "fixed_large"}) {
    CAPTURE(std::string(kind));
    const auto scheduler = schedule("iddpm", {{"variance", std::string(kind)}});
    const double coarse = variance(*sampler("ancestral"), *scheduler, 100);
    const double fine = variance(*sampler("ancestral"), *scheduler, 1000);
    CHECK(fine == doctest::Approx(wanted).epsilon(0.02));
    CHECK(std::abs(fine - wanted) < 0.3 * std::abs(coarse - wanted));
  }
  const auto flow = schedule("rectified_flow");
  const double coarse = variance(*sampler("ddim", {{"eta", 1.0}}), *flow, 100);
  const double fine = variance(*sampler("ddim", {{"eta", 1.0}}), *flow, 1000);
  CHECK(fine == doctest::Approx(wanted).epsilon(0.02));
  CHECK(std::abs(fine - wanted) < 0.3 * std::abs(coarse - wanted));
}

TEST_CASE("ddim with eta = 1 is ancestral sampling with the smaller variance") {
  const auto scheduler = schedule("iddpm", {{"variance", std::string("fixed_small")}});
  CHECK(variance(*sampler("ddim", {{"eta", 1.0}}), *scheduler, 40) ==
        doctest::Approx(variance(*sampler("ancestral"), *scheduler, 40)).epsilon(1e-10));
}

TEST_CASE("with the best learned variance, ancestral sampling reaches the data's variance in few steps") {
  const auto scheduler = schedule("iddpm");
  const Gaussian data{0, kDeviation};
  const auto grid = scheduler->time_grid(10);
  const auto best = [&](const Tensor& x, double t) {
    const auto at = std::find(grid.begin(), grid.end(), t);
    const double place = best_variance(level(*scheduler, t), level(*scheduler, at[1]));
    return torch::cat({data.predict(*scheduler, x, t).slice(1, 0, 1), torch::full_like(x, place)}, 1);
  };
  const double wanted = kDeviation * kDeviation;
  CHECK(variance(*sampler("ancestral"), *scheduler, 10, best) == doctest::Approx(wanted).epsilon(1e-3));
  CHECK(std::abs(variance(*sampler("ancestral"), *scheduler, 10) - wanted) > 0.1 * wanted);  // the smaller bound
}
