// Paths from noise at t = 0 to data at t = 1 as SiT writes them (Ma et al., 2024, arXiv:2401.08740): x_t = alpha(t) x_0
// + sigma(t) eps, of which a model predicts the velocity alpha' x_0 + sigma' eps, the score -eps / sigma, or eps. A
// schedule of this family says its path alone.
#pragma once

#include <string>
#include <vector>

#include <ditto/scheduler.h>

namespace ditto {

class DITTO_API Interpolant : public Scheduler {
 public:
  struct DITTO_API Options {
    std::string prediction = "velocity", weight = "none";
    double train_eps = 0, sample_eps = 0, model_time_scale = 1;
    void read(OptionReader& option);
  };
  struct Point {
    double alpha, sigma, d_alpha, d_sigma;  // and their derivatives in t
  };
  // Where on [0, 1] it is cut by train_eps and sample_eps: where its formulas end, at noise (t = 0) and at data (t =
  // 1).
  struct Ends {
    bool noise, data;
  };
  Interpolant(const std::string& name, const Options& options, const Ends& cut)
      : name_(name), options_(options), cut_(cut) {}
  ~Interpolant() override;

  virtual Point at(double t) const = 0;

  torch::Tensor times(const torch::Tensor& u_B) const override;
  torch::Tensor alpha(const torch::Tensor& t_B) const override;
  torch::Tensor sigma(const torch::Tensor& t_B) const override;
  torch::Tensor target(const torch::Tensor& clean, const torch::Tensor& noise, const torch::Tensor& t_B) const override;
  // Of SiT's options `weight`: its losses of score and noise are errors of eps, which w = none, velocity or likelihood
  // weighs (section 2.3).
  torch::Tensor weight(const torch::Tensor& t_B) const override;
  std::vector<torch::Tensor> factors(const torch::Tensor& t_B) const override;
  torch::Tensor c_noise(const torch::Tensor& t_B) const override { return options_.model_time_scale * t_B; }
  torch::Tensor to_clean(const torch::Tensor& prediction, const torch::Tensor& x_t,
                         const torch::Tensor& t_B) const override;
  torch::Tensor to_noise(const torch::Tensor& prediction, const torch::Tensor& x_t,
                         const torch::Tensor& t_B) const override;
  // Even, and as SiT's it ends at data's cut.
  std::vector<double> time_grid(int64_t steps) const override;
  double start_scale(double) const override { return 1; }  // plain noise, whatever is cut
  std::optional<Slope> slope(double t) const override;

 private:
  torch::Tensor each(const torch::Tensor& t_B, double Point::*what) const;
  double from(double eps) const { return cut_.noise ? eps : 0; }
  double to(double eps) const { return cut_.data ? 1 - eps : 1; }

  std::string name_;
  Options options_;
  Ends cut_;
};

}  // namespace ditto
