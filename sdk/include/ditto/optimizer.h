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

// Whole tensors for an optimizer that needs them, under any layout. Called by all ranks alike.
class DITTO_API WholeTensors {
 public:
  virtual ~WholeTensors();
  // One local tensor for each of the optimizer's parameters, or undefined (the same ones on all ranks). Each comes back
  // whole on one of the ranks that hold a part of it, chosen so that the work is shared, and undefined on the others.
  virtual std::vector<torch::Tensor> gather(const std::vector<torch::Tensor>& local) const = 0;
  // The way back: of whole tensors that lie where gather put them, every rank's own part, shaped as `local`, gather's
  // argument.
  virtual std::vector<torch::Tensor> scatter(const std::vector<torch::Tensor>& whole,
                                             const std::vector<torch::Tensor>& local) const = 0;
};

// The state of one kind ("exp_avg").
struct OptimizerState {
  std::vector<torch::Tensor> tensors;  // along `parameters`; undefined: this one has none of the kind
  int64_t block = 1;  // > 1: one number for this many consecutive ones of the parameter's last dim (scales of blocks)
};

class DITTO_API Optimizer {
 public:
  static constexpr const char* kKind = "optimizer";
  struct Needs {
    std::vector<OptimizedParameter> parameters;
    const WholeTensors* whole;  // outlives the optimizer
  };
  // What an update of one number depends on: it alone, its block of consecutive numbers of the last dim, or its matrix.
  enum class Granularity { elementwise, blockwise, matrix };

  virtual ~Optimizer();
  virtual Granularity granularity() const { return Granularity::elementwise; }
  // One update from the parameters' gradients (undefined: no update of that one). `lr` is the learning rate of this
  // step.
  virtual void step(double lr) = 0;
  // State tensors by kind, with the parameter's shape (in blocks, with its last dim divided by the block and rounded
  // up); and counters by name. The tensors are the live ones: loading copies into them.
  virtual std::map<std::string, OptimizerState> state() = 0;
  virtual std::map<std::string, int64_t> counters() const = 0;
  virtual void set_counters(const std::map<std::string, int64_t>& counters) = 0;
};

}  // namespace ditto
