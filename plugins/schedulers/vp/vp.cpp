// The variance-preserving path of score models (Song et al., 2021, arXiv:2011.13456, eq. 11) as SiT writes it: beta
// grows evenly from data to noise, alpha is exp of minus half its integral, sigma^2 = 1 - alpha^2.
#include <cmath>

#include <ditto/diffusion/interpolant.h>
#include <ditto/math/elementary.h>

namespace {

struct VpOptions : ditto::Interpolant::Options {
  double beta_min = 0.1, beta_max = 20;
  VpOptions() { train_eps = 1e-5, sample_eps = 1e-3; }

  void read(ditto::OptionReader& option) {
    ditto::Interpolant::Options::read(option);
    option("beta_min", beta_min, "beta at the data").above(0.0);
    option("beta_max", beta_max, "beta at the noise").above(0.0);
    if (train_eps == 0 || sample_eps == 0)
      option.reject(train_eps == 0 ? "train_eps" : "sample_eps", "is 0, and sigma falls without bound at the data",
                    "use 1e-5 to train and 1e-3 to sample, as SiT");
  }
};

struct Vp final : ditto::Interpolant {
  using Options = VpOptions;
  Vp(const Options& o, const Needs&) : Interpolant("vp", o, {.noise = false, .data = true}), options(o) {}

  Point at(double t) const override {
    const double back = 1 - t, growth = options.beta_max - options.beta_min;
    const double log_alpha = -0.25 * back * back * growth - 0.5 * back * options.beta_min;
    const double slope = 0.5 * back * growth + 0.5 * options.beta_min;  // of log alpha
    const double alpha = ditto::elementary::exp(log_alpha), square = ditto::elementary::exp(2 * log_alpha);
    const double sigma = std::sqrt(-ditto::elementary::expm1(2 * log_alpha));
    return {alpha, sigma, alpha * slope, -square * slope / sigma};
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Scheduler, Vp, "vp", "1.0.0", "Apache-2.0", "The variance-preserving path, with SiT's conventions")
