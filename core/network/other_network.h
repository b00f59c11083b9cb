// Another network of the run, [network.NAME]: what frozen ones and those that train have in common.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ditto/network.h>
#include <ditto/scheduler.h>

#include "core/network/running_model.h"
#include "core/network/saved_model.h"

namespace ditto {

// What a model gets as "t" of c_noise: fp32, and where that is, in the host's memory, in which layers make features of
// it; of shapes alone on their device.
torch::Tensor model_time(const torch::Tensor& c_noise, torch::Device device);

class OtherNetwork : public Network {
 public:
  // What the run gives it: `scheduler` may be null.
  struct Surroundings {
    const Mesh& mesh;
    std::shared_ptr<const OpTable> table;
    const Scheduler* scheduler;
    at::ScalarType compute;
    torch::Device device;
    FrozenWeights weights = FrozenWeights::read;
    TensorSpecs data = {};  // what the run's data makes
  };

  const TensorSpecs& takes() const override { return takes_; }
  TensorSpecs makes() const override { return model_->model->makes(); }
  int64_t depth() const override { return model_->model->depth(); }
  bool trains() const override { return model_->setting.trains; }
  void require_trains() const override;
  void require_frozen() const override;
  torch::Tensor predict(Batch batch, const torch::Tensor& x_t, const torch::Tensor& time_B) override;

  bool in_step() const { return model_->in_step(); }
  RunningModel& running() const { return *model_; }
  // What its blocks have added to the loss since it was last asked, per sample, by name.
  std::map<std::string, torch::Tensor> take_auxiliary_losses() { return std::exchange(auxiliary_losses_, {}); }
  const std::string& where() const { return where_; }  // its section, for messages

 protected:
  OtherNetwork(const NetworkSection& section, const Surroundings& around);
  void make(Components& components, const Surroundings& around, RunningModel::Setting setting);

  const std::string name_, where_;
  const Scheduler* scheduler_;
  TensorSpecs takes_;
  std::unique_ptr<RunningModel> model_;
  std::map<std::string, torch::Tensor> auxiliary_losses_;
};

}  // namespace ditto
