#include "core/network/frozen.h"

#include <torch/types.h>

#include <ditto/error.h>

#include "core/config/differences.h"
#include "core/data/names.h"
#include "core/network/foreign_model.h"

namespace ditto {

using torch::Tensor;

namespace {

// In which options the schedules differ, in words; empty: in none.
std::string other_schedule(const Recipe& run, const Recipe& theirs) {
  if (!theirs.scheduler) return {};  // another project's file says nothing of it
  std::string text;
  for (const auto& [key, now, then] : differences(run.resolved(), theirs.resolved()))
    if (key.starts_with("scheduler."))
      text += (text.empty() ? "" : ", ") + key + " = " + then + " (the run's: " + now + ")";
  return text.empty() ? "" : "it was trained with " + text;
}

}  // namespace

namespace {

// Its classes would be others than the run's.
void require_same_names(const TensorSpecs& theirs, const TensorSpecs& data, const NetworkSection& section) {
  const auto others = other_names(theirs, data);
  if (others && others->apart.is_elsewhere)
    throw Error(ErrorKind::config, section.component.where,
                "network \"" + section.name + "\": " + others->text("there", "in the run's data"),
                "choose weights that learned the classes by the run's numbers");
}

}  // namespace

FrozenNetwork::FrozenNetwork(Components& components, const NetworkSection& section, const Surroundings& around)
    : OtherNetwork(section, around) {
  const auto from = open(components, section);
  other_schedule_ = other_schedule(components.recipe, from.recipe);
  require_same_names(from.shapes.data, around.data, section);
  const auto& component = section.component && from.saved ? section.component : from.recipe.model;
  RunningModel::Setting setting{{section.component ? section.section() : "", component}, from.shapes.model};
  setting.compute = section.precision.empty() ? around.compute : dtype_of(section.precision);
  setting.device = around.device;
  setting.trains = false;
  setting.copied = copied_axes(section, {Axis::pipeline});
  setting.adapter = from.recipe.adapter;
  make(components, around, setting);
  note_other_channels();
  model_->cut(components);
  model_->fill(RunningModel::Weights::room);
  if (from.saved) fingerprint_ = fingerprint_of(*from.saved, section.which);
  if (around.device.is_meta() || around.weights != FrozenWeights::read) return;
  if (from.saved)
    load_weights(*from.saved, section.which, *model_);
  else
    fingerprint_ = load_foreign_weights(*model_->model, section, from.file, from.reading, *model_, around.mesh);
}

FrozenNetwork::From FrozenNetwork::open(Components& components, const NetworkSection& section) {
  if (section.format.empty()) {
    auto saved = open_saved(section.weights, {});
    return {saved.recipe, saved.shapes, std::move(saved), {}, {}};
  }
  require_weights(section);
  std::optional<Recipe> given;
  if (section.component) {
    given = Recipe::parse("", section.component.where);
    given->model = section.component;
  }
  auto foreign = open_foreign(section.weights, section.format, which_of(section), std::move(given), {},
                              components.registry, section.section());
  return {std::move(foreign.recipe), std::move(foreign.shapes), std::nullopt, foreign.file, foreign.reading};
}

// A schedule that learns a variance has other channels.
void FrozenNetwork::note_other_channels() {
  if (!scheduler_ || !other_schedule_.empty()) return;
  const auto& needs = model_->setting.needs;
  const auto expected = scheduler_->out_channels(needs.shape(names::kInput).at(0));
  if (needs.out_channels != expected)
    other_schedule_ = "it has " + std::to_string(needs.out_channels) + " channels, and the run's schedule learns " +
                      std::to_string(expected);
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
