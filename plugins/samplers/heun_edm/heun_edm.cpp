// EDM's stochastic sampler (Karras et al., 2022, arXiv:2206.00364, alg. 2): where the noise level sigma / alpha is
// within s_tmin and s_tmax, noise is added before each of heun's steps. Without churn it is heun.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ditto/sampler.h>

namespace {

struct HeunEdmOptions {
  double s_churn = 0, s_tmin = 0, s_tmax = std::numeric_limits<double>::infinity(), s_noise = 1;

  void read(ditto::OptionReader& option) {
    option("s_churn", s_churn,
           "noise added on the whole way: a step's level grows by the factor 1 + s_churn / steps, at most "
           "the root of 2; 0: none")
        .at_least(0.0);
    option("s_tmin", s_tmin, "it is added at noise levels sigma / alpha from this on …").at_least(0.0);
    option("s_tmax", s_tmax, "… up to this");
    option("s_noise", s_noise, "its standard deviation").above(0.0);
    if (s_tmin > s_tmax)
      option.reject("s_tmin", "lies above s_tmax, so that no noise is added", "give the smaller first");
    option.only_if(s_churn != 0, {"s_tmin", "s_tmax", "s_noise"}, "changes nothing where s_churn is 0");
  }
};

struct HeunEdm final : ditto::Sampler {
  using Options = HeunEdmOptions;
  HeunEdm(const Options& o, const Needs&) : options(o) {}

  std::string refuses(const ditto::Scheduler& scheduler) const override {
    return options.s_churn == 0 || scheduler.time_at(1) ? ""
                                                        : "with s_churn it steps to times between the schedule's own";
  }

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const double level = step.from.sigma / step.from.alpha;
      const auto steps = static_cast<double>(step.grid.size() - 1);
      const double growth = 1 + std::min(options.s_churn / steps, std::sqrt(2.0) - 1);
      const bool churns = growth > 1 && level >= options.s_tmin && level <= options.s_tmax && std::isfinite(level);
      const auto raised = churns ? request.scheduler.time_at(level * growth) : std::nullopt;
      if (!raised) return go_by_both(request, x, step.t, step.s);
      const double alpha = ditto::level(request.scheduler, *raised).alpha;
      const double added = alpha * level * std::sqrt(growth * growth - 1) * options.s_noise;
      const auto noisier = alpha / step.from.alpha * x + added * fresh_noise(request, x, step.index);
      return go_by_both(request, noisier, *raised, step.s);
    });
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Sampler, HeunEdm, "heun_edm", "1.0.0", "Apache-2.0", "EDM's second-order sampler with fresh noise (churn)")
