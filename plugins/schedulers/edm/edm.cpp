// EDM (Karras et al., 2022, arXiv:2206.00364, table 1): time is the noise's deviation, x = data + t noise, and the
// network is wrapped so that its input and its target have unit variance at every time.
#include <cmath>

#include <torch/types.h>

#include <ditto/diffusion/error_loss.h>
#include <ditto/math/elementary.h>
#include <ditto/scheduler.h>

namespace {

using ditto::spread;
using torch::Tensor;

class Edm : public ditto::Scheduler {
 public:
  struct Options : ditto::ErrorLoss::Options {
    double sigma_data = 0.5, mean = -1.2, std = 1.2, sigma_min = 0.002, sigma_max = 80, rho = 7;

    void read(ditto::OptionReader& option) {
      option("sigma_data", sigma_data, "standard deviation of the data").above(0.0);
      option("mean", mean, "of the logarithm of the training noise; NeMo's DiT has 0");
      option("std", std, "its standard deviation; NeMo's DiT has 1").above(0.0);
      ditto::ErrorLoss::Options::read(option);
      option("sigma_min", sigma_min, "least noise of a sampling step's start").above(0.0);
      option("sigma_max", sigma_max, "noise that sampling starts from").above(0.0);
      option("rho", rho, "sampling noise is even in its rho-th root").above(0.0);
      if (sigma_max <= sigma_min) option.reject("sigma_max", "is not above scheduler.sigma_min", "make it larger");
    }
  };
  Edm(const Options& options, const Needs&) : options_(options), loss_(options) {}

  Tensor times(const Tensor& u_B) const override {
    return ditto::elementary::map(u_B, [this](double u) {
      return ditto::elementary::exp(options_.mean + options_.std * ditto::elementary::normal_quantile(u));
    });
  }
  Tensor alpha(const Tensor& t_B) const override { return torch::ones_like(t_B); }
  Tensor sigma(const Tensor& t_B) const override { return t_B.clone(); }
  Tensor target(const Tensor& clean, const Tensor&, const Tensor&) const override { return clean; }
  Tensor weight(const Tensor& t_B) const override { return total(t_B) / square(t_B * options_.sigma_data); }
  std::vector<Tensor> factors(const Tensor& t_B) const override {
    auto all = Scheduler::factors(t_B);
    if (!loss_.is_square()) all.push_back(ditto::ErrorLoss::scale(weight(t_B)));
    return all;
  }
  std::map<std::string, Tensor> losses(const Tensor& prediction, const Tensor& clean, const Tensor& noise,
                                       const Tensor& t_B, const ditto::OpTable* ops) const override {
    if (loss_.is_square()) return Scheduler::losses(prediction, clean, noise, t_B, ops);
    return loss_.losses(prediction, clean, weight(t_B), ops);
  }

  Tensor c_noise(const Tensor& t_B) const override { return ditto::elementary::map(t_B, ditto::elementary::log) / 4; }
  Tensor c_in(const Tensor& t_B) const override { return 1 / root(total(t_B)); }
  Tensor c_out(const Tensor& t_B) const override { return t_B * options_.sigma_data / root(total(t_B)); }
  Tensor c_skip(const Tensor& t_B) const override { return options_.sigma_data * options_.sigma_data / total(t_B); }

  Tensor to_clean(const Tensor& prediction, const Tensor& x_t, const Tensor&) const override {
    return prediction.to(x_t.scalar_type());
  }
  Tensor to_noise(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const override {
    return (x_t - prediction.to(x_t.scalar_type())) / spread(t_B, x_t);
  }
  std::vector<double> time_grid(int64_t steps) const override {
    if (steps < 1)
      throw ditto::Error(ditto::ErrorKind::config, "scheduler 'edm'",
                         "cannot make a grid of " + std::to_string(steps) + " steps", "use 1 or more");
    std::vector<double> grid;
    for (const double at : ditto::elementary::even_steps(power(options_.sigma_max, 1 / options_.rho),
                                                         power(options_.sigma_min, 1 / options_.rho), steps))
      grid.push_back(power(at, options_.rho));
    grid.push_back(0);
    return grid;
  }
  std::optional<Slope> slope(double t) const override { return t == 0 ? std::nullopt : std::optional(Slope{0, 1}); }
  std::optional<double> time_at(double noise_level) const override { return noise_level; }

 private:
  static Tensor square(const Tensor& x) { return x * x; }
  static Tensor root(const Tensor& x) {
    return ditto::elementary::map(x, [](double number) { return std::sqrt(number); });
  }
  static double power(double base, double exponent) {
    return ditto::elementary::exp(exponent * ditto::elementary::log(base));
  }
  Tensor total(const Tensor& t_B) const { return square(t_B) + options_.sigma_data * options_.sigma_data; }

  Options options_;
  ditto::ErrorLoss loss_;
};

}  // namespace

DITTO_PLUGIN(Scheduler, Edm, "edm", "1.0.0", "Apache-2.0", "EDM: preconditioning, log-normal noise, Karras' grid")
