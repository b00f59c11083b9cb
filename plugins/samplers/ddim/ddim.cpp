// DDIM (Song et al., arXiv:2010.02502, eq. 12) for any schedule, written with alpha and sigma.
//
// x_s = alpha_s x_0 + sqrt(sigma_s^2 - v) eps + sqrt(v) z, where v = eta^2 times the variance of x_s given x_t and x_0,
// sigma_s^2 (1 - (alpha_t sigma_s / (alpha_s sigma_t))^2): eq. 16 of the paper where alpha^2 + sigma^2 = 1.
// eta = 0 is the deterministic sampler; eta = 1 is ancestral sampling with the smaller of the two fixed variances.
#include <cmath>

#include <ditto/sampler.h>

namespace {

class Ddim : public ditto::Sampler {
 public:
  struct Options {
    double eta = 0.0;
    void read(ditto::OptionReader& option) {
      option("eta", eta, "share of fresh noise: 0 none (deterministic), 1 as ancestral sampling").between(0.0, 1.0);
    }
  };
  Ddim(const Options& options, const Needs&) : options_(options) {}

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const auto [clean, noise] = estimate(request, x, step.t);
      const double deviation = options_.eta * std::sqrt(posterior_variance(step.from, step.to));
      const double kept = std::sqrt(std::max(0.0, step.to.sigma * step.to.sigma - deviation * deviation));
      const auto mean = step.to.alpha * clean + kept * noise;
      return deviation == 0 ? mean : mean + deviation * fresh_noise(request, x, step.index);
    });
  }

 private:
  static double posterior_variance(const ditto::Level& from, const ditto::Level& to) {
    const double ratio = from.alpha * to.sigma / (to.alpha * from.sigma);
    return to.sigma * to.sigma * std::max(0.0, 1 - ratio * ratio);
  }

  Options options_;
};

}  // namespace

DITTO_PLUGIN(Sampler, Ddim, "ddim", "1.0.0", "Apache-2.0", "DDIM, deterministic or with fresh noise (eta)")
