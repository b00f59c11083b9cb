#include "core/network/frozen.h"

#include <torch/torch.h>

#include <ditto/error.h>

#include "core/checkpoint/manifest.h"

namespace ditto {

using torch::Tensor;

namespace {

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
    : OtherNetwork(section, around) {
  const auto saved = open_saved(section.weights, {});
  fingerprint_ = saved.fingerprint;
  other_schedule_ = other_schedule(components.recipe, saved.recipe);
  const auto& component = section.component ? section.component : saved.recipe.model;
  RunningModel::Setting setting{section.component ? "network." + section.name : "", component, saved.shapes.model};
  setting.compute = section.precision.empty() ? around.compute : dtype_of(section.precision);
  setting.device = around.device;
  setting.trains = false;
  setting.copied = copied_axes(section);
  make(components, around, setting);
  model_->cut(components);
  model_->fill(RunningModel::Weights::room);
  if (!around.device.is_meta()) load_weights(saved, section.which, *model_);
}

void FrozenNetwork::require_same_schedule() const {
  if (!other_schedule_.empty())
    throw Error(ErrorKind::config, where_, "network \"" + name_ + "\" predicts something else: " + other_schedule_,
                "choose weights that were trained with the run's schedule, or another schedule");
}

// Without a graph they would be cut off unseen.
void FrozenNetwork::refuse_gradients(const Batch& batch) const {
  if (!torch::GradMode::is_enabled()) return;
  for (const auto& [name, tensor] : batch.tensors)
    if (tensor.requires_grad())
      throw Error(ErrorKind::config, where_,
                  "network \"" + name_ + "\" is frozen, and \"" + name + "\", which it is given, asks for a gradient",
                  "let the objective detach() it, or set network." + name_ + ".trains = true");
}

Outputs FrozenNetwork::run(const Batch& batch, const std::vector<int64_t>& features) {
  refuse_gradients(batch);
  torch::NoGradGuard no_grad;
  model_->ctx->phase = Phase::evaluate;
  model_->tap(features);
  return model_->run(batch);
}

}  // namespace ditto
