// An optimizer works on the parameters this rank holds: whole ones, or slices.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/plugin.h>

namespace ditto {

// One leaf to be optimised. `tensor` and its gradient are fp32 (fp64 in proofs) and may be a slice of the global
// parameter.
struct OptimizedParameter {
  std::string name;
  torch::Tensor tensor;
  std::vector<int64_t> full_shape;  // of the global parameter: decide by this, never by the slice's
};

class DITTO_API Optimizer {
 public:
  static constexpr const char* kKind = "optimizer";
  struct Needs {
    std::vector<OptimizedParameter> parameters;
  };
  // What an update of one number depends on; sharded strategies give it what it needs, or refuse.
  enum class Granularity { elementwise, blockwise, matrix };

  virtual ~Optimizer();
  virtual Granularity granularity() const { return Granularity::elementwise; }
  // One update from the parameters' gradients (undefined: no update of that one). `lr` is the learning rate of this
  // step.
  virtual void step(double lr) = 0;
  // State tensors by kind ("exp_avg"), each a list along `parameters`, with the parameter's shape; and counters by
  // name. The tensors are the live ones: loading copies into them.
  virtual std::map<std::string, std::vector<torch::Tensor>> state() = 0;
  virtual std::map<std::string, int64_t> counters() const = 0;
  virtual void set_counters(const std::map<std::string, int64_t>& counters) = 0;
};

}  // namespace ditto
