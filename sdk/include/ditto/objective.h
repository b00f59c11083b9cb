// What is minimised: how a batch is prepared, and the losses of a prediction.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/scheduler.h>

namespace ditto {

class DITTO_API Objective {
 public:
  static constexpr const char* kKind = "objective";
  struct Needs {
    const Model* model;          // for the null condition
    const Scheduler* scheduler;  // null where the recipe has none
  };
  virtual ~Objective();

  // Adds what `losses` will need (noise, dropout), and with a scheduler the noisy samples "x_t" and their "time" [B]
  // (double, the schedule's own): of these the host makes what the model sees, "x" = c_in x_t and "t" = c_noise(time).
  // Without a scheduler it adds "x" and "t" itself. A function of the samples' ids alone, so that every rank and every
  // restart prepares a sample alike. Phase::train draws; Phase::evaluate uses the batch's own "time_u" [B] (uniform
  // numbers in (0, 1)) instead of drawing times, and drops nothing.
  virtual Batch prepare(Batch batch, Context& ctx) const = 0;
  // What else `prepare` adds that a model may take: a model's input that nobody makes is refused at the start.
  virtual std::vector<TensorSpec> makes() const { return {}; }
  // Per-sample losses [B] by name; their sum is minimised. With a scheduler, `prediction` is what a sampler would get:
  // c_skip x_t + c_out F of the model's output F, in x_t's dtype.
  virtual std::map<std::string, torch::Tensor> losses(const torch::Tensor& prediction, const Batch& batch,
                                                      Context& ctx) const = 0;
};

}  // namespace ditto
