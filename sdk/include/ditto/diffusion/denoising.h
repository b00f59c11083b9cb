// What objectives of denoising share: a schedule corrupts the samples, and conditions are dropped for guidance.
#pragma once

#include <map>
#include <string>

#include <ditto/objective.h>

namespace ditto {

struct DITTO_API DenoisingOptions {
  double condition_dropout = 0.1;
  std::string time_per = "sample";  // or "frame"; an objective whose losses allow it declares this option itself
  void read(OptionReader& option);  // condition_dropout alone
};

class DITTO_API Denoising : public Objective {
 public:
  // `name`: of the objective, for messages. Throws Error(config) where the recipe has no schedule, and where times are
  // per frame and the model takes none (Model::time_per_frame).
  Denoising(const std::string& name, const DenoisingOptions& options, const Needs& needs);
  ~Denoising() override;

  // Adds x_t, time ([B]; drawn per frame [B, F]) and noise. In evaluation every frame has its sample's time. Fixed
  // times and noise in evaluation: validation losses of two steps differ by the weights alone.
  Batch prepare(Batch batch, Context& ctx) const override;
  TensorSpecs takes() const override { return {{"clean", torch::kFloat, kAnyShape, "x_0"}}; }
  TensorSpecs makes() const override { return {{"noise", torch::kFloat, kAnyShape, "eps, as clean"}}; }
  // The schedule's own.
  std::map<std::string, torch::Tensor> losses(const Outputs& outputs, const Batch& batch, Context& ctx) const override;

 protected:
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  double condition_dropout_;
  bool time_per_frame_;
  const Model& model_;
  const Scheduler& scheduler_;
};

}  // namespace ditto
