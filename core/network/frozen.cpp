#include "core/network/frozen.h"

#include <torch/torch.h>

#include <ditto/error.h>

#include "core/checkpoint/manifest.h"
#include "core/network/names.h"

namespace ditto {

using torch::Tensor;

namespace {

AxisSet copied_axes(const NetworkSection& section) {
  AxisSet copied{Axis::pipeline};
  for (const auto& [text, degree] : section.parallel) {
    const auto at = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis axis) { return text == name(axis); });
    if (at == kAxes.end())
      throw Error(ErrorKind::config, section.component.where,
                  "network." + section.name + ".parallel has no axis \"" + text + "\"",
                  "its axes are shard, tensor, context and expert");
    copied.insert(*at);
  }
  return copied;
}

// In which options the schedules differ, in words; empty: in none.
std::string other_schedule(const Recipe& run, const Recipe& theirs) {
  std::string text;
  for (const auto& [key, now, then] : differences(run.resolved(), theirs.resolved()))
    if (key.starts_with("scheduler."))
      text += (text.empty() ? "" : ", ") + key + " = " + then + " (the run's: " + now + ")";
  return text.empty() ? "" : "it was trained with " + text;
}

}  // namespace

FrozenNetwork::FrozenNetwork(Components& components, const NetworkSection& section, const Surroundings& around)
    : name_(section.name), where_(section.component.where), scheduler_(around.scheduler) {
  const auto saved = open_saved(section.weights, {});
  fingerprint_ = saved.fingerprint;
  other_schedule_ = other_schedule(components.recipe, saved.recipe);
  const auto& component = section.component ? section.component : saved.recipe.model;
  RunningModel::Setting setting{section.component ? "network." + section.name : "", component, saved.shapes.model};
  setting.compute = section.precision.empty() ? around.compute : dtype_of(section.precision);
  setting.device = around.device;
  setting.trains = false;
  setting.copied = copied_axes(section);
  model_ = std::make_unique<RunningModel>(components, around.mesh, around.table, setting);
  takes_ = model_->model->takes();
  model_->cut(components);
  model_->fill(RunningModel::Weights::room);
  if (!around.device.is_meta()) load_weights(saved, section.which, *model_);
}

void FrozenNetwork::require_same_schedule() const {
  if (!other_schedule_.empty())
    throw Error(ErrorKind::config, where_, "network \"" + name_ + "\" predicts something else: " + other_schedule_,
                "choose weights that were trained with the run's schedule, or another schedule");
}

Outputs FrozenNetwork::run(const Batch& batch, const std::vector<int64_t>& features) {
  torch::NoGradGuard no_grad;
  model_->ctx->phase = Phase::evaluate;
  model_->tap(features);
  return model_->run(batch);
}

Tensor FrozenNetwork::predict(Batch batch, const Tensor& x_t, const Tensor& time_B) {
  require_same_schedule();
  batch[names::kInput] = scheduler_ ? scheduler_->model_input(x_t, time_B) : x_t;
  const auto t = scheduler_ ? scheduler_->c_noise(time_B) : time_B;
  batch[names::kInputTime] = t.to(torch::kFloat).to(model_->setting.device);
  const auto raw = run(batch, {}).at(names::kPrediction);
  return scheduler_ ? scheduler_->precondition(raw, x_t, time_B) : raw;
}

}  // namespace ditto
