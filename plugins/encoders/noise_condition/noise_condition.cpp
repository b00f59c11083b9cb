// Noise on a picture that a model is given, at that picture's own size, with the noise's time beside it: noise
// conditioning augmentation (J. Ho et al., 2021, arXiv:2106.15282, section 4.2), in the terms of EDM (T. Karras et al.,
// 2022, arXiv:2206.00364) as NeMo's Imagen has it: low + sigma n, times c_in, and ln(sigma) / 4. NeMo draws anew at
// every evaluation of the model; here a sample has one draw.
//
// Legend: B samples, C channels, h rows, w columns.
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/math/elementary.h>

#include <cmath>

namespace {

using ditto::Batch;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using torch::Tensor;

constexpr std::uint32_t kNoiseSeries = 1;  // series 0 of these draws are levels

struct NoiseOptions {
  std::string takes = "low";
  double mean = -1.2, std = 1.2, sigma_data = 0.5, sample_sigma = 0.002;

  void read(ditto::OptionReader& option) {
    option("takes", takes, "the picture; what is made of it keeps its name, and NAME_t is its noise's time");
    option("mean", mean, "of ln(sigma) in training, where each sample has a level of its own").between(-20.0, 20.0);
    option("std", std, "of ln(sigma) in training").between(0.0, 10.0);
    option("sigma_data", sigma_data, "of pictures: the noised one is divided by sqrt(sigma_data^2 + sigma^2)")
        .above(0.0);
    option("sample_sigma", sample_sigma, "the noise's level as a run samples").above(0.0);
    if (takes == "clean")
      option.reject("takes", "= \"clean\" is the picture that is learned, and not what it is made of",
                    "name the small one, as \"low\"");
  }
};

class NoiseCondition final : public ditto::Encoder {
 public:
  using Options = NoiseOptions;

  NoiseCondition(const Options& o, const Needs& needs) : options_(o), picture_(given(needs.inputs)) {
    time_ = TensorSpec{o.takes + "_t", at::kFloat, {}, "the time of its noise"};
    if (ditto::find(needs.inputs, time_.name))
      refuse("it would make \"" + time_.name + "\", and that is there already", "leave one of the two out");
    clear_ = picture_;
    clear_.name = o.takes + "_clear";
  }

  TensorSpecs takes() const override { return {picture_}; }
  TensorSpecs caches() const override { return {clear_}; }
  TensorSpecs makes() const override { return {picture_, time_}; }

  Batch precompute(Batch batch, ditto::Context&) const override {
    batch[clear_.name] = batch.at(picture_.name);
    return batch;
  }

  Batch encode(Batch batch, ditto::Context& ctx) const override {
    // Data of an fp64 run are in fp32, and what is kept of them in fp64: both get one noise.
    const auto clear = batch.at(clear_.name).to(ctx.compute == torch::kDouble ? torch::kDouble : torch::kFloat);
    const auto of = [&](const Tensor& value_B) { return value_B.to(clear.device(), clear.scalar_type()); };
    const auto ln_sigma_B = levels(batch, ctx);
    const auto sigma_B = ditto::elementary::map(ln_sigma_B, [](double x) { return ditto::elementary::exp(x); });
    const double data = options_.sigma_data * options_.sigma_data;
    const auto c_in_B = ditto::elementary::map(sigma_B, [&](double s) { return 1 / std::sqrt(data + s * s); });
    const auto noise = ctx.random.normal(ditto::Purpose::encoding, batch.ids, clear.sizes().slice(1),
                                         clear.scalar_type(), kNoiseSeries);
    const auto spread = [&](const Tensor& value_B) { return of(value_B).view({-1, 1, 1, 1}); };
    batch[picture_.name] = (clear + noise.to(clear.device()) * spread(sigma_B)) * spread(c_in_B);
    batch[time_.name] = of(ln_sigma_B / 4);
    return batch;
  }

  std::string fingerprint() const override { return "noise_condition 1, " + options_.takes; }

 private:
  // ln(sigma), in double on the host. A validation's are as training's, by its samples' ids.
  Tensor levels(const Batch& batch, ditto::Context& ctx) const {
    const auto count = static_cast<int64_t>(batch.ids.size());
    if (ctx.phase == ditto::Phase::sample)
      return torch::full({count}, ditto::elementary::log(options_.sample_sigma), torch::kDouble);
    const auto normal_B = ctx.random.normal(ditto::Purpose::encoding, batch.ids, {}, torch::kDouble);
    return normal_B * options_.std + options_.mean;
  }

  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const {
    throw ditto::Error(ditto::ErrorKind::config, "encoder \"noise_condition\", takes = \"" + options_.takes + "\"",
                       found, remedy);
  }
  TensorSpec given(const TensorSpecs& inputs) const {
    const auto* spec = ditto::find(inputs, options_.takes);
    if (spec && spec->shape.size() == 3 && spec->dtype == at::kFloat) return *spec;
    std::string there;
    for (const auto& input : inputs) there += (there.empty() ? "" : ", ") + ditto::to_text(input);
    refuse("there is no such picture, only: " + (there.empty() ? "nothing" : there),
           "name a picture that data hold or an encoder before this one makes, as \"pyramid\" does");
  }

  const Options options_;
  const TensorSpec picture_;
  TensorSpec time_, clear_;
};

}  // namespace

DITTO_PLUGIN(Encoder, NoiseCondition, "noise_condition", "1.0.0", "Apache-2.0",
             "noise on a small picture that a model enlarges, at its own size, and the noise's time")
