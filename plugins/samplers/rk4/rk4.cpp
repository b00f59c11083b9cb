// The fourth-order method of Runge and Kutta by Kutta's 3/8 rule, torchdiffeq's rk4, for dx/dt = alpha' E[x_0 | x] +
// sigma' E[eps | x] along the schedule's grid. A step to where the flow has no slope (EDM's to sigma = 0) is euler's.
#include <ditto/sampler.h>

namespace {

struct Rk4 final : ditto::Sampler {
  using Options = ditto::NoOptions;
  Rk4(const Options&, const Needs&) {}

  std::string refuses(const ditto::Scheduler& scheduler) const override {
    return has_flow(scheduler) ? "" : "it evaluates the model between the schedule's times";
  }

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const auto& scheduler = request.scheduler;
      if (!scheduler.slope(step.t) || !scheduler.slope(step.s))
        return go_straight(x, estimate(request, x, step.t), step.from, step.to);
      const double h = step.s - step.t;
      const auto k1 = flow(request, x, step.t);
      const auto k2 = flow(request, x + (h / 3) * k1, step.t + h / 3);
      const auto k3 = flow(request, x + h * (k2 - k1 / 3), step.t + 2 * h / 3);
      const auto k4 = flow(request, x + h * (k1 - k2 + k3), step.s);
      return x + (h / 8) * (k1 + 3 * (k2 + k3) + k4);
    });
  }
};

}  // namespace

DITTO_PLUGIN(Sampler, Rk4, "rk4", "1.0.0", "Apache-2.0",
             "Fourth-order solver of the probability flow, four evaluations a step")
