// Euler and Maruyama's steps of the reverse SDE, as SiT (Ma et al., 2024, arXiv:2401.08740, section 2.4): dx = (flow +
// w score) dt + sqrt(2 w) dW, whose marginals are the flow's for any diffusion w(t) >= 0. The last step draws no noise.
//
// Legend: r the share of the way from noise to data; w is of a unit of the schedule's time.
#include <cmath>

#include <ditto/math/elementary.h>
#include <ditto/sampler.h>

namespace {

using torch::Tensor;

struct SdeEulerOptions {
  std::string diffusion = "sigma", last_step = "tweedie";
  double norm = 1, last_step_size = 0;
  void read(ditto::OptionReader& option) {
    option("diffusion", diffusion,
           "w: constant, sigma, linear (1 - r), decreasing, increasing_decreasing; or sbdm, the score model's own SDE")
        .one_of({"constant", "sbdm", "sigma", "linear", "decreasing", "increasing_decreasing"});
    option("norm", norm, "factor of w").at_least(0.0);
    option(
        "last_step", last_step,
        "tweedie: the estimate of the data; mean: as the others, without noise (SiT's default); euler: the flow's step")
        .one_of({"mean", "tweedie", "euler"});
    option("last_step_size", last_step_size,
           "share of the time that it goes, after even ones (SiT: 0.04); 0: the schedule's grid")
        .between(0.0, 0.5);
  }
};

struct SdeEuler final : ditto::Sampler {
  using Options = SdeEulerOptions;
  SdeEuler(const Options& o, const Needs&) : options(o) {}

  std::string refuses(const ditto::Scheduler& scheduler) const override {
    if (!has_flow(scheduler)) return "it needs the slopes of alpha and sigma";
    const auto start = scheduler.time_grid(2).front();
    if (!scheduler.slope(start)) return "the flow has no slope where sampling starts";
    if (options.diffusion == "sbdm" && level(scheduler, start).alpha == 0)
      return "diffusion = \"sbdm\" is infinite where alpha is 0, and sampling starts there";
    return {};
  }

  Tensor sample(const ditto::SamplingRequest& request) const override {
    const auto ends = request.scheduler.time_grid(2);
    const double first = ends.front(), end = ends.back();
    auto grid = request.scheduler.time_grid(request.steps);
    if (options.last_step_size > 0) {
      grid = ditto::elementary::even_steps(first, end - (end - first) * options.last_step_size, request.steps);
      grid.push_back(end);
    }
    return integrate(request, grid, [&](const Tensor& x, const ditto::Step& step) {
      const auto [clean, noise] = estimate(request, x, step.t);
      const bool is_last = step.index + 1 == request.steps;
      if (is_last && options.last_step == "tweedie") return step.to.alpha * clean;
      const auto slope = request.scheduler.slope(step.t).value();
      const double dt = step.s - step.t;
      const auto by_flow = x + dt * (slope.alpha * clean + slope.sigma * noise);
      if (is_last && options.last_step == "euler") return by_flow;
      const double w = diffusion(step.from, slope, (step.t - first) / (end - first), end - first);
      const auto mean = by_flow - std::abs(dt) * w / step.from.sigma * noise;  // the score is -noise / sigma
      if (is_last) return mean;
      return mean + std::sqrt(2 * w * std::abs(dt)) * fresh_noise(request, x, step.index);
    });
  }

 private:
  double diffusion(const ditto::Level& at, const ditto::Scheduler::Slope& slope, double r, double way) const {
    const auto& form = options.diffusion;
    if (form == "constant") return options.norm;
    if (form == "sigma") return options.norm * at.sigma;
    if (form == "linear") return options.norm * (1 - r);
    if (form == "sbdm")  // half of g^2
      return options.norm * std::copysign(at.sigma, way) * (slope.alpha / at.alpha * at.sigma - slope.sigma);
    const auto [cos, sin] = ditto::elementary::cos_sin_of_turn(r / 2);
    if (form == "decreasing") return 0.25 * (options.norm * cos + 1) * (options.norm * cos + 1);
    return options.norm * sin * sin;
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Sampler, SdeEuler, "sde_euler", "1.0.0", "Apache-2.0", "Steps of the reverse SDE, with SiT's diffusions")
