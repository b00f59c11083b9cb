// Denoising whose loss at each noise level is weighed by the model's uncertainty there, which is learned beside it
// (Karras et al., 2023, arXiv:2312.02696, eq. 14): exp(-u) L + u, with u a learned row over Fourier features of
// log(sigma / alpha) / 4. Its least is at exp(u) = L, so that every level pulls alike. Sampling knows nothing of it.
#include <ditto/diffusion/denoising.h>
#include <ditto/math/elementary.h>
#include <ditto/math/sizes.h>
#include <ditto/plugin.h>
#include <ditto/upload.h>

#include <algorithm>
#include <cmath>

#include <torch/types.h>

namespace {

using ditto::Batch;
using torch::Tensor;
namespace elementary = ditto::elementary;

struct UncertaintyOptions : ditto::DenoisingOptions {
  int64_t features = 128;
  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("features", features, "of the noise level, that the uncertainty is linear in")
        .between(1, ditto::most::kWidth);
  }
};

struct Uncertainty final : ditto::Denoising {
  using Options = UncertaintyOptions;
  Uncertainty(const Options& o, const Needs& needs)
      : Denoising("uncertainty", o, needs), row(zero_linear(ditto::Unit::objective, "row", o.features, 1)) {
    // Standard normal frequencies and even phases, as their quantiles: EDM2 draws them.
    for (int64_t k = 0; k < o.features; ++k) {
      const auto count = static_cast<double>(o.features), place = static_cast<double>(k);
      frequencies.push_back(elementary::normal_quantile((place + 0.5) / count));
      phases.push_back(place * 0.6180339887498949 - std::floor(place * 0.6180339887498949));
    }
  }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch,
                                       ditto::Context& ctx) const override {
    Tensor sum;
    for (const auto& [name, loss] : Denoising::losses(outputs, batch, ctx)) sum = sum.defined() ? sum + loss : loss;
    const auto u_B = row(ditto::uploaded(features(batch.at("time")).to(ctx.compute), ctx.device), ctx)
                         .flatten()
                         .to(sum.scalar_type());
    return {{"denoising", sum * ctx.ops.table().run("exp", {{-u_B}}).at(0)}, {"uncertainty", u_B}};
  }

 private:
  Tensor features(const Tensor& time_B) const {
    const auto level_B = elementary::map(scheduler().sigma(time_B) / scheduler().alpha(time_B), [](double ratio) {
      return std::clamp(elementary::log(ratio) / 4, -5.0, 5.0);
    });
    const auto options = level_B.options();
    const auto turns = level_B.unsqueeze(1) * torch::tensor(frequencies, options) + torch::tensor(phases, options);
    return elementary::map(
        turns, [](double turn) { return std::sqrt(2.0) * elementary::cos_sin_of_turn(turn - std::floor(turn)).cos; });
  }

  ditto::Linear row;
  std::vector<double> frequencies, phases;
};

}  // namespace

DITTO_PLUGIN(Objective, Uncertainty, "uncertainty", "1.0.0", "Apache-2.0",
             "denoising, weighed by a learned uncertainty of each noise level")
