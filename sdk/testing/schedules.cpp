#include "schedules.h"

#include <cmath>

namespace ditto::testing {

using torch::Tensor;

namespace {

class Straight : public Scheduler {
 public:
  Tensor times(const Tensor& u) const override { return u; }
  Tensor alpha(const Tensor& t) const override { return 1 - t; }
  Tensor sigma(const Tensor& t) const override { return t.clone(); }
  Tensor c_noise(const Tensor& t) const override { return t; }
  Tensor target(const Tensor& clean, const Tensor& noise, const Tensor&) const override { return noise - clean; }
  Tensor to_clean(const Tensor& v, const Tensor& x, const Tensor& t) const override { return x - spread(t, x) * v; }
  Tensor to_noise(const Tensor& v, const Tensor& x, const Tensor& t) const override { return x + spread(1 - t, x) * v; }
  std::vector<double> time_grid(int64_t steps) const override {
    std::vector<double> grid;
    for (int64_t i = 0; i <= steps; ++i) grid.push_back(1 - static_cast<double>(i) / static_cast<double>(steps));
    return grid;
  }
};

class Circular : public Scheduler {
 public:
  Tensor times(const Tensor& u) const override { return u * kFirst; }
  Tensor alpha(const Tensor& t) const override { return torch::cos(t * M_PI_2); }
  Tensor sigma(const Tensor& t) const override { return torch::sin(t * M_PI_2); }
  Tensor c_noise(const Tensor& t) const override { return t; }
  Tensor target(const Tensor&, const Tensor& noise, const Tensor&) const override { return noise; }
  Tensor to_clean(const Tensor& noise, const Tensor& x, const Tensor& t) const override {
    return (x - spread(sigma(t), x) * noise) / spread(alpha(t), x);
  }
  Tensor to_noise(const Tensor& noise, const Tensor&, const Tensor&) const override { return noise; }
  std::vector<double> time_grid(int64_t steps) const override {
    std::vector<double> grid;
    for (int64_t i = 0; i <= steps; ++i)
      grid.push_back(kFirst * (1 - static_cast<double>(i) / static_cast<double>(steps)));
    return grid;
  }
  bool has_posterior() const override { return true; }
  // Of q(x_s | x_t, clean), where x_t = a x_s + sqrt(b) noise (Ho et al., arXiv:2006.11239, eq. 6 and 7).
  Gaussian step_back(const Tensor& noise, const Tensor& x, const std::vector<double>& grid,
                     int64_t step) const override {
    const double t = grid.at(step), s = grid.at(step + 1);
    const double alpha_t = std::cos(t * M_PI_2), alpha_s = std::cos(s * M_PI_2);
    const double var_t = 1 - alpha_t * alpha_t, var_s = 1 - alpha_s * alpha_s;
    const double a = alpha_t / alpha_s, b = var_t - a * a * var_s;
    const auto clean = to_clean(noise, x, torch::full({x.size(0)}, t, at::kDouble));
    return {a * var_s / var_t * x + alpha_s * b / var_t * clean,
            torch::full({1}, std::log(std::max(b * var_s / var_t, 1e-20)), x.options())};
  }

 private:
  static constexpr double kFirst = 0.98;  // alpha is zero at 1, and noise tells nothing of the data there
};

}  // namespace

std::unique_ptr<Scheduler> straight_schedule() { return std::make_unique<Straight>(); }
std::unique_ptr<Scheduler> circular_schedule() { return std::make_unique<Circular>(); }

}  // namespace ditto::testing
