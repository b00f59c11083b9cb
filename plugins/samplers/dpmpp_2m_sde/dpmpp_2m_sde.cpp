// DPM-Solver++(2M) of the reverse SDE, as k-diffusion's sample_dpmpp_2m_sde (Lu et al., 2022, arXiv:2211.01095, section
// 6), for any schedule. eta scales the SDE's noise; with 0, and the midpoint form, it is dpmpp_2m.
#include <cmath>
#include <iterator>

#include <ditto/math/elementary.h>
#include <ditto/sampler.h>

namespace {

struct Dpmpp2mSdeOptions {
  double eta = 1, s_noise = 1;
  std::string solver = "midpoint";
  void read(ditto::OptionReader& option) {
    option("eta", eta, "share of fresh noise: 0 none (deterministic), 1 the reverse SDE's").between(0.0, 1.0);
    option("s_noise", s_noise, "standard deviation of the fresh noise").above(0.0);
    option.only_if(eta != 0, {"s_noise"}, "changes nothing where eta is 0");
    option("solver", solver, "form of the second-order term: midpoint, or heun").one_of({"midpoint", "heun"});
  }
};

struct Dpmpp2mSde final : ditto::Sampler {
  using Options = Dpmpp2mSdeOptions;
  Dpmpp2mSde(const Options& o, const Needs&) : options(o) {}

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    torch::Tensor last;
    double last_h = 0;
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const auto clean = estimate(request, x, step.t).clean;
      if (step.to.sigma == 0) return step.to.alpha * clean;
      const double h = log_ratio(step.to) - log_ratio(step.from), all = (1 + options.eta) * h;
      const double left = options.eta == 0 ? 1 : ditto::elementary::exp(-options.eta * h);  // of x's noise, by the SDE
      const double share = -ditto::elementary::expm1(-all);
      auto mean = step.to.sigma / step.from.sigma * left * x + step.to.alpha * share * clean;
      if (last.defined())
        mean +=
            step.to.alpha * (options.solver == "heun" ? 1 - share / all : 0.5 * share) * (h / last_h) * (clean - last);
      last = clean;
      last_h = h;
      if (options.eta == 0 || step.index + 2 == std::ssize(step.grid)) return mean;
      return mean + step.to.sigma * std::sqrt(1 - left * left) * options.s_noise * fresh_noise(request, x, step.index);
    });
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Sampler, Dpmpp2mSde, "dpmpp_2m_sde", "1.0.0", "Apache-2.0", "DPM-Solver++(2M) with fresh noise (eta)")
