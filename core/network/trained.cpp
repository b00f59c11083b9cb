#include "core/network/trained.h"

#include <torch/types.h>

namespace ditto {

namespace {

RunningModel::Setting as_main(const RunningModel& main, const NetworkSection& section) {
  auto setting = main.setting;
  setting.section = section.section();
  setting.prefix = setting.section + ".";
  setting.component = section.component;
  setting.adapter.reset();
  setting.tread.reset();
  return setting;
}

}  // namespace

TrainedNetwork::TrainedNetwork(Components& components, const NetworkSection& section, const Surroundings& around,
                               const RunningModel& main)
    : OtherNetwork(section, around), weights_(section.weights), which_(section.which) {
  auto setting = as_main(main, section);
  setting.copied = copied_axes(section, {Axis::pipeline});
  make(components, around, std::move(setting));
}

void TrainedNetwork::cut(Components& components, RunningModel::Weights weights) {
  const bool from_file = weights == RunningModel::Weights::initial && !weights_.empty();
  model_->cut(components);
  model_->fill(from_file ? RunningModel::Weights::room : weights);
  if (from_file) load_weights(open_saved(weights_, {}), which_, *model_);
}

Outputs TrainedNetwork::run(const Batch& batch, const std::vector<int64_t>& features) {
  model_->tap(features);
  std::map<std::string, torch::Tensor> added;
  auto outputs = model_->run(batch, &added);
  const bool counts = torch::GradMode::is_enabled() || model_->ctx->phase == Phase::evaluate;
  for (const auto& [name, loss] : added)
    if (counts) {
      auto& sum = auxiliary_losses_[name];
      sum = sum.defined() ? sum + loss : loss;
    }
  return outputs;
}

}  // namespace ditto
