// Denoising: a schedule corrupts the samples, the model predicts the schedule's target.
#include <ditto/ditto.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Phase;
using ditto::Purpose;
using torch::Tensor;

struct DiffusionOptions {
  double condition_dropout = 0.1;

  void read(ditto::OptionReader& option) {
    option("condition_dropout", condition_dropout, "share of the samples trained with the null condition, for guidance")
        .between(0, 1);
  }
};

struct Diffusion final : ditto::Objective {
  using Options = DiffusionOptions;

  Diffusion(const Options& o, const Needs& needs) : options(o), model(*needs.model), scheduler(schedule_of(needs)) {}

  Batch prepare(Batch batch, Context& ctx) const override {
    const bool train = ctx.phase == Phase::train;
    const Tensor& clean = batch.at("clean");
    // Fixed times and noise in evaluation: validation losses of two steps differ by the weights alone.
    const Purpose noise_for = train ? Purpose::noise : Purpose::validation;
    const auto u_B = train ? ctx.random.uniform(Purpose::time, batch.ids, {}) : batch.at("time_u");
    const auto time_B = scheduler.times(u_B);
    const auto noise =
        ctx.random.normal(noise_for, batch.ids, clean.sizes().slice(1), clean.scalar_type()).to(ctx.device);
    batch["x_t"] =
        clean * ditto::spread(scheduler.alpha(time_B), clean) + noise * ditto::spread(scheduler.sigma(time_B), clean);
    batch["time"] = time_B;
    batch["noise"] = noise;
    if (!train || options.condition_dropout == 0) return batch;
    const auto drop_B =
        ctx.random.uniform(Purpose::condition_dropout, batch.ids, {}).lt(options.condition_dropout).to(ctx.device);
    return model.without_condition(std::move(batch), drop_B);
  }

  ditto::TensorSpecs takes() const override { return {{"clean", torch::kFloat, ditto::kAnyShape, "x_0"}}; }
  ditto::TensorSpecs makes() const override { return {{"noise", torch::kFloat, ditto::kAnyShape, "eps, as clean"}}; }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch, Context&) const override {
    return scheduler.losses(outputs.at("prediction"), batch.at("clean"), batch.at("noise"), batch.at("time"));
  }

 private:
  static const ditto::Scheduler& schedule_of(const Needs& needs) {
    if (needs.scheduler) return *needs.scheduler;
    throw ditto::Error(ditto::ErrorKind::config, "objective \"diffusion\"", "the recipe has no schedule of noise",
                       "add a section [scheduler]");
  }

  Options options;
  const ditto::Model& model;
  const ditto::Scheduler& scheduler;
};

}  // namespace

DITTO_PLUGIN(Objective, Diffusion, "diffusion", "1.0.0", "Apache-2.0",
             "denoising with any scheduler, and dropout of the condition")
