// Distillation of predictions: a student learns what a frozen teacher predicts for the same noisy sample, time and
// conditions (G. Hinton et al., 2015, arXiv:1503.02531, of a regression).
#include <ditto/diffusion/denoising.h>
#include <ditto/plugin.h>

#include <torch/types.h>

namespace {

using ditto::Batch;
using torch::Tensor;

struct DistillOptions : ditto::DenoisingOptions {
  std::string network = "teacher";
  double data = 0;

  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("network", network, "the teacher, [network.NAME]");
    option("data", data, "weight of the schedule's own loss beside; 0: the teacher's predictions alone").at_least(0.0);
  }
};

struct Distill final : ditto::Denoising {
  using Options = DistillOptions;
  Distill(const Options& o, const Needs& needs)
      : Denoising("distill", o, needs), options(o), teacher(needs.network(o.network)) {
    teacher.require_frozen();
    teacher.require_same_schedule();
  }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch,
                                       ditto::Context& ctx) const override {
    const Tensor& prediction = outputs.at("prediction");
    const auto target = teacher.predict(batch, batch.at("x_t"), batch.at("time")).to(prediction.scalar_type());
    const auto weight_B = scheduler().weight(batch.at("time")).to(prediction.options());
    std::map<std::string, Tensor> all{{"distill", ctx.ops.sample_mean((prediction - target).square()) * weight_B}};
    if (options.data > 0)
      for (const auto& [name, loss] : Denoising::losses(outputs, batch, ctx)) all[name] = loss * options.data;
    return all;
  }

  Options options;
  ditto::Network& teacher;
};

}  // namespace

DITTO_PLUGIN(Objective, Distill, "distill", "1.0.0", "Apache-2.0", "a student learns a frozen teacher's predictions")
