// An autoencoder learns to make the picture that it sees, from latents that stay near the normal distribution (D.
// Kingma and M. Welling, 2013, arXiv:1312.6114; with so small a weight of that, R. Rombach et al., 2021,
// arXiv:2112.10752).
//
// Legend: B samples, C channels, H rows, W columns.
#include <ditto/ditto.h>
#include <ditto/nn/autoencoder.h>
#include <ditto/objective.h>

#include <torch/types.h>

namespace {

using ditto::Batch;
using torch::Tensor;

constexpr const char *kPlace = "objective \"autoencoder\"", *kMoments = "moments";

struct AutoencoderOptions {
  std::string loss = "l1", discriminator;
  double kl = 1e-6;

  void read(ditto::OptionReader& option) {
    option("loss", loss, "of the picture's numbers, their mean: l1, l2, or huber (smooth, with its bend at 1)")
        .one_of({"l1", "l2", "huber"});
    option("kl", kl,
           "weight of the latents' divergence from the normal distribution, in nats over the picture's numbers")
        .at_least(0.0);
    option("discriminator", discriminator,
           "a network that judges pictures: there is no such loss yet, and it is refused");
    if (!discriminator.empty())
      option.reject("discriminator",
                    "is named, and an adversarial loss runs it twice a micro-batch with different gradients, of which "
                    "strategies allow one",
                    "leave it out: pictures are learned by loss and kl alone");
  }
};

struct Autoencoder final : ditto::Objective {
  using Options = AutoencoderOptions;

  Autoencoder(const Options& o, const Needs& needs) : options(o) {
    if (needs.scheduler)
      throw ditto::Error(ditto::ErrorKind::config, kPlace,
                         "adds no noise to pictures, and the recipe has a [scheduler]", "leave [scheduler] out");
    const auto taken = needs.model->takes();
    const auto* seen = ditto::find(taken, "x");
    if (!seen || !ditto::find(needs.model->makes(), kMoments))
      throw ditto::Error(ditto::ErrorKind::config, kPlace, "needs a model that hands out \"moments\" of latents",
                         "choose model \"autoencoder_kl\"");
    picture = *seen;
  }

  ditto::TensorSpecs takes() const override { return {{"clean", torch::kFloat, picture.shape, "-1 … 1"}}; }
  ditto::TensorSpecs makes() const override { return {picture}; }
  Batch prepare(Batch batch, ditto::Context&) const override {
    batch["x"] = batch.at("clean");
    return batch;
  }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch,
                                       ditto::Context& ctx) const override {
    ctx.refuse_under_one("the objective \"autoencoder\", whose divergence is a sum of exponentials");
    const auto& target = batch.at("x");
    const auto apart = outputs.at("prediction").to(target.scalar_type()) - target;
    const auto divergence_B =
        ditto::LatentMoments::of(outputs.at(kMoments).to(target.scalar_type())).divergence() / target[0].numel();
    return {{options.loss, ctx.ops.sample_mean(of(apart))}, {"kl", options.kl * divergence_B}};
  }

  // PSNR of pictures as they are shown, whose numbers are 2 apart at most; and the size of latents, of which an
  // encoder's scale is to make 1.
  std::map<std::string, Tensor> measures(const ditto::Outputs& outputs, const Batch& batch,
                                         ditto::Context&) const override {
    constexpr double kPeak = 2, kLeast = 1e-12;
    const auto& target = batch.at("x");
    const auto shown = outputs.at("prediction").to(target.scalar_type()).clamp(-1, 1);
    const auto error_B = (shown - target).square().flatten(1).mean(1).clamp_min(kLeast);
    const auto latents = ditto::LatentMoments::of(outputs.at(kMoments).to(target.scalar_type()));
    const auto square_B = (latents.mean.square() + latents.log_variance.exp()).flatten(1).mean(1);
    return {{"psnr", 10 * (kPeak * kPeak / error_B).log10()}, {"latent_rms", square_B.sqrt()}};
  }

 private:
  Tensor of(const Tensor& apart) const {
    if (options.loss == "l2") return apart.square();
    const auto size = apart.abs();
    return options.loss == "l1" ? size : torch::where(size < 1, 0.5 * size.square(), size - 0.5);
  }

  Options options;
  ditto::TensorSpec picture;
};

}  // namespace

DITTO_PLUGIN(Objective, Autoencoder, "autoencoder", "1.0.0", "Apache-2.0",
             "pictures of latents that are near the normal distribution; validations say PSNR")
