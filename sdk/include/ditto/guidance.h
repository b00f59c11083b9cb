// How a sampler's predictions are guided: what is evaluated at a time, and how it is combined.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/network.h>
#include <ditto/sampler.h>

namespace ditto {

// A prediction that is asked for: of which network, with which conditions.
struct Evaluation {
  bool with_conditions = true;  // false: the negative condition, where the request gives one; else the null condition
  std::string network = {};     // [network.NAME]; empty: the model itself
};

// One place on the way from noise to data. The schedule's x_t = alpha clean + sigma noise.
struct GuidanceCall {
  const torch::Tensor& x_t;  // [B, C, …]
  double time;               // of the schedule
  Level level;               // alpha and sigma there
  const Batch& conditions;   // the samples' own, by name
  // The predictions, one for each evaluation, [B, out_channels, …]: what the schedule's `target` is for. Evaluations of
  // one network that stand side by side are one forward.
  std::function<Tensors(const std::vector<Evaluation>&)> evaluate;
};

class DITTO_API Guidance {
 public:
  static constexpr const char* kKind = "guidance";
  static constexpr std::uint32_t kAbi = 12;
  static constexpr Effect kEffect = Effect::nothing;
  struct Needs {
    // Throws Error(config) where the run has no such network, or one that was trained with another schedule.
    std::function<void(const std::string& name)> require_network = {};
  };
  virtual ~Guidance();
  // What the sampler gets, shaped as an evaluation. A sample's numbers depend on its own row alone.
  virtual torch::Tensor predict(const GuidanceCall& call) const = 0;
  // Whether it asks for predictions without conditions: a request's negative conditions are refused where it does not.
  virtual bool uses_negative() const { return false; }
};

}  // namespace ditto
