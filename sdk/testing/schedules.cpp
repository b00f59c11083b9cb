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

// EDM's (arXiv:2206.00364, table 1): time is the noise's deviation, the target is the data.
class Preconditioned : public Scheduler {
 public:
  Tensor times(const Tensor& u) const override { return (u * 4 - 2).exp(); }
  Tensor alpha(const Tensor& t) const override { return torch::ones_like(t); }
  Tensor sigma(const Tensor& t) const override { return t.clone(); }
  Tensor weight(const Tensor& t) const override { return all(t) / (t * kData).square(); }
  Tensor c_noise(const Tensor& t) const override { return t.log() / 4; }
  Tensor c_in(const Tensor& t) const override { return all(t).rsqrt(); }
  Tensor c_out(const Tensor& t) const override { return t * kData * all(t).rsqrt(); }
  Tensor c_skip(const Tensor& t) const override { return kData * kData / all(t); }
  Tensor target(const Tensor& clean, const Tensor&, const Tensor&) const override { return clean; }
  Tensor to_clean(const Tensor& clean, const Tensor&, const Tensor&) const override { return clean; }
  Tensor to_noise(const Tensor& clean, const Tensor& x, const Tensor& t) const override {
    return (x - clean) / spread(t, x);
  }
  std::vector<double> time_grid(int64_t steps) const override {
    std::vector<double> grid;
    for (int64_t i = 0; i <= steps; ++i)
      grid.push_back(8.0 * static_cast<double>(steps - i) / static_cast<double>(steps));
    return grid;
  }

 private:
  static constexpr double kData = 0.5;
  static Tensor all(const Tensor& t) { return t.square() + kData * kData; }
};

}  // namespace

std::unique_ptr<Scheduler> preconditioned_schedule() { return std::make_unique<Preconditioned>(); }
std::unique_ptr<Scheduler> straight_schedule() { return std::make_unique<Straight>(); }
std::unique_ptr<Scheduler> circular_schedule() { return std::make_unique<Circular>(); }

}  // namespace ditto::testing
