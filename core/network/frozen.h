// Another network of the run, frozen: an autoguidance checkpoint, a distillation teacher, an encoder of features.
#pragma once

#include <memory>
#include <string>

#include <ditto/network.h>
#include <ditto/scheduler.h>

#include "core/network/running_model.h"
#include "core/network/saved_model.h"

namespace ditto {

class FrozenNetwork final : public Network {
 public:
  // What the run gives it: `scheduler` may be null.
  struct Surroundings {
    const Mesh& mesh;
    std::shared_ptr<const OpTable> table;
    const Scheduler* scheduler;
    at::ScalarType compute;
    torch::Device device;
  };
  // Reads its weights. Ranks along the pipeline axis hold copies: it is run where it is asked for. Throws Error(config)
  // or Error(checkpoint).
  FrozenNetwork(Components& components, const NetworkSection& section, const Surroundings& around);

  const TensorSpecs& takes() const override { return takes_; }
  TensorSpecs makes() const override { return model_->model->makes(); }
  int64_t depth() const override { return model_->model->depth(); }
  Outputs run(const Batch& batch, const std::vector<int64_t>& features) override;
  torch::Tensor predict(Batch batch, const torch::Tensor& x_t, const torch::Tensor& time_B) override;

  // Throws Error(config) where it was trained with another schedule than the run's: its predictions mean other things.
  void require_same_schedule() const override;
  bool in_step() const { return model_->in_step(); }
  const RunningModel& running() const { return *model_; }
  // Names its weights: a run that goes on with others is another run.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  std::string name_, where_, other_schedule_, fingerprint_;
  const Scheduler* scheduler_;
  TensorSpecs takes_;
  std::unique_ptr<RunningModel> model_;
};

}  // namespace ditto
