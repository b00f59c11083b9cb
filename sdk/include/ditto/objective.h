// What is minimised: how a batch is prepared, and the losses of a prediction.
#pragma once

#include <map>
#include <string>

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

  // Adds what the model takes and what `losses` will need (times, noise, dropout). A function of the samples' ids
  // alone, so that every rank and every restart prepares a sample alike. Phase::train draws; Phase::evaluate uses the
  // batch's own "time_u" [B] (uniform numbers in (0, 1)) instead of drawing times, and drops nothing.
  virtual Batch prepare(Batch batch, Context& ctx) const = 0;
  // Per-sample losses [B] by name; their sum is minimised.
  virtual std::map<std::string, torch::Tensor> losses(const torch::Tensor& prediction, const Batch& batch,
                                                      Context& ctx) const = 0;
};

}  // namespace ditto
