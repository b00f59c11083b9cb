// DDPM in continuous time (Kingma et al., 2021, arXiv:2107.00630) as Imagen and NeMo's Imagen train: t in [0, 1], 1 is
// noise; the model sees log SNR; alpha^2 = sigmoid(log SNR), sigma^2 = 1 - alpha^2.
#include <algorithm>
#include <cmath>

#include <torch/types.h>

#include <ditto/diffusion/error_loss.h>
#include <ditto/diffusion/predictions.h>
#include <ditto/math/elementary.h>
#include <ditto/scheduler.h>

namespace {

using ditto::spread;
using torch::Tensor;

constexpr double kQuarter = 1.57079632679489661923;
constexpr double kOffset = 0.008;  // s of the cosine schedule (arXiv:2102.09672, eq. 17)
constexpr double kLeast = 1e-8;    // alpha at t = 1: what Imagen divides by at least

class Continuous : public ditto::Scheduler {
 public:
  struct Options : ditto::Prediction::Options, ditto::ErrorLoss::Options {
    std::string log_snr = "cosine";
    void read(ditto::OptionReader& option) {
      ditto::Prediction::Options::read(option);
      ditto::ErrorLoss::Options::read(option);
      option("log_snr", log_snr, "cosine, or linear: that of DDPM's linear betas").one_of({"cosine", "linear"});
    }
  };
  Continuous(const Options& options, const Needs&) : options_(options), prediction_(options), loss_(options) {}

  // --- training ---
  Tensor times(const Tensor& u_B) const override { return u_B.to(at::kDouble); }
  Tensor alpha(const Tensor& t_B) const override {
    return ditto::elementary::map(t_B, [this](double t) { return at(t).alpha; });
  }
  Tensor sigma(const Tensor& t_B) const override {
    return ditto::elementary::map(t_B, [this](double t) { return at(t).sigma; });
  }
  Tensor c_noise(const Tensor& t_B) const override {
    return ditto::elementary::map(t_B, [this](double t) { return at(t).log_snr; });
  }
  Tensor target(const Tensor& clean, const Tensor& noise, const Tensor& t_B) const override {
    return prediction_.target(clean, noise, alpha(t_B), sigma(t_B));
  }
  Tensor weight(const Tensor& t_B) const override { return prediction_.weight(alpha(t_B), sigma(t_B)); }
  std::vector<Tensor> factors(const Tensor& t_B) const override {
    auto all = Scheduler::factors(t_B);
    if (!loss_.is_square()) all.push_back(ditto::ErrorLoss::scale(weight(t_B)));
    return all;
  }
  std::map<std::string, Tensor> losses(const Tensor& prediction, const Tensor& clean, const Tensor& noise,
                                       const Tensor& t_B, const ditto::OpTable* ops) const override {
    if (loss_.is_square()) return Scheduler::losses(prediction, clean, noise, t_B, ops);
    return loss_.losses(prediction, target(clean, noise, t_B), weight(t_B), ops);
  }

  // --- sampling ---
  Tensor to_clean(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const override {
    return prediction_.to_clean(prediction, x_t, alpha(t_B), sigma(t_B));
  }
  Tensor to_noise(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const override {
    return prediction_.to_noise(prediction, x_t, alpha(t_B), sigma(t_B));
  }
  // Even, to t = 0, where a trace of noise is left: sigma is 0.010 (linear) or 0.012.
  std::vector<double> time_grid(int64_t steps) const override {
    if (steps < 1)
      throw ditto::Error(ditto::ErrorKind::config, "scheduler 'ddpm_continuous'",
                         "cannot make a grid of " + std::to_string(steps) + " steps", "use 1 or more");
    return ditto::elementary::even_steps(1, 0, steps + 1);
  }
  double start_scale(double) const override { return 1; }
  std::optional<Slope> slope(double t) const override { return at(t).slope; }

  // The posterior between any two times (arXiv:2107.00630, eqs. 32 and 33), of the smaller variance.
  bool has_posterior() const override { return true; }
  Gaussian step_back(const Tensor& prediction, const Tensor& x_t, const std::vector<double>& grid,
                     int64_t step) const override {
    const auto from = at(grid.at(step)), to = at(grid.at(step + 1));
    const double share = -ditto::elementary::expm1(from.log_snr - to.log_snr), kept = 1 - share;
    const auto clean = to_clean(prediction, x_t, torch::full({x_t.size(0)}, grid[step], at::kDouble));
    const double variance = std::max(to.sigma * to.sigma * share, 1e-20);
    return {to.alpha * (kept / from.alpha * x_t + share * clean),
            torch::full({1}, ditto::elementary::log(variance), x_t.options()).expand_as(x_t)};
  }

 private:
  struct Point {
    double log_snr, alpha, sigma;
    Slope slope;
  };
  Point at(double t) const {
    if (options_.log_snr == "linear") {  // alpha^2 = exp(-b), and so SNR = 1 / (exp(b) - 1)
      const double b = 1e-4 + 10 * t * t, square = ditto::elementary::exp(-b);
      const double alpha = ditto::elementary::exp(-0.5 * b), sigma = std::sqrt(-ditto::elementary::expm1(-b));
      return {-ditto::elementary::log(ditto::elementary::expm1(b)),
              alpha,
              sigma,
              {-10 * t * alpha, 10 * t * square / sigma}};
    }
    constexpr double kRate = kQuarter / (1 + kOffset);
    const auto [cos, sin] = ditto::elementary::cos_sin((t + kOffset) * kRate);
    const double alpha = std::max(cos, kLeast);
    return {-2 * ditto::elementary::log(sin / alpha), alpha, sin, {-kRate * sin, kRate * cos}};
  }

  Options options_;
  ditto::Prediction prediction_;
  ditto::ErrorLoss loss_;
};

}  // namespace

DITTO_PLUGIN(Scheduler, Continuous, "ddpm_continuous", "1.0.0", "Apache-2.0",
             "DDPM in continuous time by log-SNR, as Imagen's")
