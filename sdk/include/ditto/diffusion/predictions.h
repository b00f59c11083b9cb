// What a model predicts of x = alpha x_0 + sigma eps where alpha^2 + sigma^2 = 1, and how its squared error is weighed:
// what schedules that keep the variance share.
//
// alpha and sigma are double [B] or [B, F], as a schedule gives them; pictures [B, C, …] in any floating dtype, and
// results in theirs.
#pragma once

#include <string>

#include <torch/types.h>

#include <ditto/options.h>
#include <ditto/visibility.h>

namespace ditto {

class DITTO_API Prediction {
 public:
  struct DITTO_API Options {
    std::string prediction = "epsilon", weight = "none";
    double gamma = 5;
    void read(OptionReader& option);
  };
  explicit Prediction(const Options& options) : options_(options) {}

  // eps; x_0; or v = alpha eps - sigma x_0 (Salimans and Ho, 2022, arXiv:2202.00512, appendix D).
  torch::Tensor target(const torch::Tensor& clean, const torch::Tensor& noise, const torch::Tensor& alpha,
                       const torch::Tensor& sigma) const;
  torch::Tensor to_clean(const torch::Tensor& prediction, const torch::Tensor& x, const torch::Tensor& alpha,
                         const torch::Tensor& sigma) const;
  torch::Tensor to_noise(const torch::Tensor& prediction, const torch::Tensor& x, const torch::Tensor& alpha,
                         const torch::Tensor& sigma) const;
  // Of the squared error of what is predicted, with SNR = (alpha / sigma)^2: 1; "min_snr", min(SNR, gamma) of x_0's
  // error (Hang et al., 2023, arXiv:2303.09556, eq. 8); "debiased", 1 / sqrt(SNR) of eps's (Yu et al., 2023,
  // arXiv:2310.08442, eq. 15). An error of eps is SNR times that of x_0, one of v is SNR + 1 times.
  torch::Tensor weight(const torch::Tensor& alpha, const torch::Tensor& sigma) const;

  const std::string& of() const { return options_.prediction; }

 private:
  Options options_;
};

}  // namespace ditto
