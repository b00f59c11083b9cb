#include "core/network/other_network.h"

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/data/names.h"

namespace ditto {

using torch::Tensor;

OtherNetwork::OtherNetwork(const NetworkSection& section, const Surroundings& around)
    : name_(section.name), where_(section.component.where), scheduler_(around.scheduler) {}

void OtherNetwork::make(Components& components, const Surroundings& around, RunningModel::Setting setting) {
  model_ = std::make_unique<RunningModel>(components, around.mesh, around.table, std::move(setting));
  takes_ = model_->model->takes();
}

void OtherNetwork::require_trains() const {
  if (!trains())
    throw Error(ErrorKind::config, where_,
                "network \"" + name_ + "\" is frozen, and the objective asks for one that learns",
                "set network." + name_ + ".trains = true");
}

void OtherNetwork::require_frozen() const {
  if (trains())
    throw Error(ErrorKind::config, where_,
                "network \"" + name_ + "\" trains, and the objective asks for one that is frozen",
                "set network." + name_ + ".trains = false, with weights = \"…\"");
}

Tensor model_time(const Tensor& c_noise, torch::Device device) {
  const auto t = c_noise.to(torch::kFloat);
  return device.is_meta() ? t.to(device) : t;
}

Tensor OtherNetwork::predict(Batch batch, const Tensor& x_t, const Tensor& time_B) {
  require_same_schedule();
  batch[names::kInput] = scheduler_ ? scheduler_->model_input(x_t, time_B) : x_t;
  const auto t = scheduler_ ? scheduler_->c_noise(time_B) : time_B;
  batch[names::kInputTime] = model_time(t, model_->setting.device);
  const auto raw = run(batch, {}).at(names::kPrediction);
  return scheduler_ ? scheduler_->precondition(raw, x_t, time_B) : raw;
}

}  // namespace ditto
