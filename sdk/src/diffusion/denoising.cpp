#include <ditto/diffusion/denoising.h>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn/tables.h>
#include <ditto/upload.h>

namespace ditto {

using torch::Tensor;

namespace {

const Scheduler& schedule_of(const std::string& name, const Objective::Needs& needs) {
  if (needs.scheduler) return *needs.scheduler;
  throw Error(ErrorKind::config, "objective \"" + name + "\"", "the recipe has no schedule of noise",
              "add a section [scheduler]");
}

// What training will ask of these times, in the copy that takes up what is drawn.
void send_ahead(const Scheduler& scheduler, const Tensor& time_B, const Context& ctx) {
  auto* ahead = SentAhead::here();
  if (!ahead || ctx.device.is_cpu() || ctx.device.is_meta()) return;
  for (const auto& factor : scheduler.factors(time_B)) ahead->add(factor);
  const auto t_B = scheduler.c_noise(time_B);
  for (const auto& [half, divisor] : ctx.time_features) add_timestep_features(*ahead, t_B, half, divisor);
}

}  // namespace

void DenoisingOptions::read(OptionReader& option) {
  option("condition_dropout", condition_dropout, "share of the samples trained with the null condition, for guidance")
      .between(0, 1);
}

Denoising::Denoising(const std::string& name, const DenoisingOptions& options, const Needs& needs)
    : condition_dropout_(options.condition_dropout),
      time_per_frame_(options.time_per == "frame"),
      model_(*needs.model),
      scheduler_(schedule_of(name, needs)) {
  if (time_per_frame_ && !model_.time_per_frame())
    throw Error(ErrorKind::config, "objective.time_per", "= \"frame\", and the model takes one time for each sample",
                "leave it at \"sample\", or choose a model of video whose tokens are of one frame each (st_dit)");
}
Denoising::~Denoising() = default;

Batch Denoising::prepare(Batch batch, Context& ctx) const {
  const bool train = ctx.phase == Phase::train;
  const Tensor& clean = batch.at("clean");
  const Purpose noise_for = train ? Purpose::noise : Purpose::validation;
  const auto drawn = time_per_frame_ ? std::vector<int64_t>{clean.size(2)} : std::vector<int64_t>{};
  const auto u_B = train ? ctx.random.uniform(Purpose::time, batch.ids, drawn) : batch.at("time_u");
  const auto sized = scheduler_.for_size(clean.sizes().slice(1));
  const auto time_B = (sized ? *sized : scheduler_).times(u_B);
  send_ahead(scheduler_, time_B, ctx);
  const bool drops = train && condition_dropout_ > 0;
  const auto sent = uploaded(
      {ctx.random.normal(noise_for, batch.ids, clean.sizes().slice(1), clean.scalar_type()), scheduler_.alpha(time_B),
       scheduler_.sigma(time_B),
       drops ? ctx.random.uniform(Purpose::condition_dropout, batch.ids, {}).lt(condition_dropout_) : Tensor()},
      ctx.device);
  const auto &noise = sent[0], &alpha = sent[1], &sigma = sent[2], &drop_B = sent[3];
  batch["x_t"] = clean * spread(alpha, clean) + noise * spread(sigma, clean);
  batch["time"] = time_B;
  batch["noise"] = noise;
  if (!drops) return batch;
  return model_.without_condition(std::move(batch), drop_B);
}

std::map<std::string, Tensor> Denoising::losses(const Outputs& outputs, const Batch& batch, Context& ctx) const {
  return scheduler_.losses(outputs.at("prediction"), batch.at("clean"), batch.at("noise"), batch.at("time"),
                           &ctx.ops.table());
}

}  // namespace ditto
