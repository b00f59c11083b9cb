// What is minimised: how a batch is prepared, and the losses of a prediction.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/network.h>
#include <ditto/scheduler.h>

namespace ditto {

// Its own parameters (a projector, a learned uncertainty), made with `add` or `linear` for Unit::objective, are in the
// run's layout as "objective.NAME": cut, summed, averaged and saved like the model's.
class DITTO_API Objective : public Units {
 public:
  static constexpr const char* kKind = "objective";
  static constexpr std::uint32_t kAbi = 12;
  struct Needs {
    const Model* model;          // for the null condition, and for what it hands out
    const Scheduler* scheduler;  // null where the recipe has none
    // Another network of the run, [network.NAME]. Throws Error(config) that lists what there is. Outlives the
    // objective.
    std::function<Network&(const std::string& name)> network = {};
  };
  Objective();
  ~Objective() override;

  // Adds what `losses` will need (noise, dropout), and with a scheduler the noisy samples "x_t" and their "time" [B]
  // (double, the schedule's own): of these the host makes what the model sees, "x" = c_in x_t and "t" = c_noise(time).
  // Without a scheduler it adds "x" and "t" itself. A function of the samples' ids alone, so that every rank and every
  // restart prepares a sample alike. Phase::train draws; Phase::evaluate uses the batch's own "time_u" [B] (uniform
  // numbers in (0, 1)) instead of drawing times, and drops nothing.
  virtual Batch prepare(Batch batch, Context& ctx) const = 0;
  // What it needs of data and encoders, and what else `prepare` adds that a model may take: an input that nobody makes
  // is refused when the recipe is read.
  virtual TensorSpecs takes() const { return {}; }
  virtual TensorSpecs makes() const { return {}; }
  // The blocks whose tokens `losses` wants besides the prediction, as outputs "features.K" [B, T, D] of whole samples.
  virtual std::vector<int64_t> features() const { return {}; }
  // Per-sample losses [B] by name; their sum is minimised. With a scheduler, outputs["prediction"] is what a sampler
  // would get: c_skip x_t + c_out F of the model's output F, in x_t's dtype.
  virtual std::map<std::string, torch::Tensor> losses(const Outputs& outputs, const Batch& batch,
                                                      Context& ctx) const = 0;
  // What a validation says beside its losses, per sample [B] by name ("psnr"): its mean is noted, and nobody minimises
  // it. Default: nothing.
  virtual std::map<std::string, torch::Tensor> measures(const Outputs&, const Batch&, Context&) const { return {}; }
};

}  // namespace ditto
