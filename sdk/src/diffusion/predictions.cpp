#include <ditto/diffusion/predictions.h>

#include <torch/types.h>

#include <ditto/scheduler.h>

namespace ditto {

using torch::Tensor;

void Prediction::Options::read(OptionReader& option) {
  option("prediction", prediction, "what the model predicts: the noise, the data, or v = alpha noise - sigma data")
      .one_of({"epsilon", "x0", "v"});
  option("weight", weight,
         "of the squared error: min_snr: that of the data by min(SNR, gamma); debiased: that of the noise "
         "by 1 / sqrt(SNR)")
      .one_of({"none", "min_snr", "debiased"});
  option("gamma", gamma, "the most that weight = \"min_snr\" takes of the signal-to-noise ratio").above(0.0);
  option.only_if(weight == "min_snr", {"gamma"}, "is of weight = \"min_snr\"");
}

Tensor Prediction::target(const Tensor& clean, const Tensor& noise, const Tensor& alpha, const Tensor& sigma) const {
  if (of() == "epsilon") return noise;
  if (of() == "x0") return clean;
  return spread(alpha, clean) * noise.to(clean.scalar_type()) - spread(sigma, clean) * clean;
}

Tensor Prediction::to_clean(const Tensor& prediction, const Tensor& x, const Tensor& alpha, const Tensor& sigma) const {
  const auto given = prediction.to(x.scalar_type());
  if (of() == "epsilon") return (x - spread(sigma, x) * given) / spread(alpha, x);
  if (of() == "x0") return given;
  return spread(alpha, x) * x - spread(sigma, x) * given;
}

Tensor Prediction::to_noise(const Tensor& prediction, const Tensor& x, const Tensor& alpha, const Tensor& sigma) const {
  const auto given = prediction.to(x.scalar_type());
  if (of() == "epsilon") return given;
  if (of() == "x0") return (x - spread(alpha, x) * given) / spread(sigma, x);
  return spread(sigma, x) * x + spread(alpha, x) * given;
}

Tensor Prediction::weight(const Tensor& alpha, const Tensor& sigma) const {
  if (options_.weight == "none") return torch::ones_like(alpha);
  const auto snr = (alpha * alpha) / (sigma * sigma);
  if (options_.weight == "min_snr") {
    if (of() == "epsilon") return (options_.gamma / snr).clamp_max(1);
    const auto of_clean = snr.clamp_max(options_.gamma);
    return of() == "x0" ? of_clean : of_clean / (snr + 1);
  }
  const auto ratio = alpha / sigma;
  if (of() == "epsilon") return 1 / ratio;
  return of() == "x0" ? ratio : ratio / (snr + 1);
}

}  // namespace ditto
