// An optimizer works on the parameters this rank holds: whole ones, or slices.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/plugin.h>

namespace ditto {

// One leaf to be optimised. `tensor` and its gradient, tensor.grad(), are fp32 (fp64 in proofs) and may be a slice of
// the global parameter.
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
  // Which of them gather would bring here: always the same ones for the same tensors (defined or not, and of what
  // dtype). Asks nobody.
  virtual std::vector<bool> here(const std::vector<torch::Tensor>& local) const = 0;
};

// The state of one kind ("exp_avg"), and how it lies along the parameters.
struct OptimizerState {
  std::vector<torch::Tensor> tensors;  // along `parameters`; undefined: this one has none of the kind
  int64_t block = 1;   // > 1: one number for this many consecutive ones of the parameter's last dim (scales of blocks)
  bool whole = false;  // of any shape (rows, columns, factors): on the rank where WholeTensors brings the parameter,
                       // and undefined on those that hold other parts of it
};

// One update of all parameters, which have their gradients (undefined: no update of that one; what is average and copy
// of it follows all the same). An optimizer does all that is asked here: a fused one in one pass over memory, others by
// `in_parts`. The lists run along the parameters.
struct Update {
  double lr = 0;
  double clip = 1;                          // gradients are multiplied by this first; 1: they stay
  std::vector<torch::Tensor> average = {};  // <- decay * average + (1 - decay) * the new weight; empty: there is none
  double decay = 0;
  std::vector<torch::Tensor> copies = {};  // <- the new weight, rounded to the copy's dtype; undefined or empty: none
  bool exact = false;  // run.numerics = "one": the average is made of single operations, average + (1 - decay) * (new
                       // weight - average)
  // run.read_results = "late": what the device knows before the host does, beside the run's model; undefined elsewhere.
  torch::Tensor late_clip = {};  // [] fp64: gradients are multiplied by this too
  torch::Tensor skip = {};  // [] bool; true: all tensors keep their bits, and counters go on (the host puts them back)
  // Told of numbers [begin, end) of a parameter, in its memory's order, whose weight and average have their values of
  // this step, while a cache still has them. `follow` calls it where it passes over both piece by piece (`exact`); of a
  // parameter all numbers are told of, once, or none. Empty: nobody asks.
  std::function<void(size_t parameter, int64_t begin, int64_t end)> written = {};
};

class OpTable;

class DITTO_API Optimizer {
 public:
  static constexpr const char* kKind = "optimizer";
  static constexpr std::uint32_t kAbi = 12;
  static constexpr Effect kEffect = Effect::course;
  struct Needs {
    std::vector<OptimizedParameter> parameters;
    const WholeTensors* whole;  // outlives the optimizer
    // The run's ops (kernels.h), which outlive the optimizer; null: the host gives none.
    const OpTable* ops = nullptr;
    // run.numerics = "one": updates are made of single operations of IEEE arithmetic and of ops.
    bool exact = false;
  };
  // What an update of one number depends on: it alone, its block of consecutive numbers of the last dim, or its matrix.
  enum class Granularity { elementwise, blockwise, matrix };

  virtual ~Optimizer();
  virtual Granularity granularity() const { return Granularity::elementwise; }
  // The weights to evaluate and to sample with are this optimizer's own (schedule-free): instead of the exponential
  // average it writes them to Update::average, which begins as the weights. A run without an average is then refused.
  virtual bool averages() const { return false; }
  // With Needs::exact its updates have the same bits on every machine, at any cut of the parameters. An optimizer that
  // does not say so is refused under run.numerics = "one".
  virtual bool exact() const { return false; }
  // `step` heeds Update::skip and late_clip. With an optimizer that does not say so the host reads a step's results
  // before it asks for the update.
  virtual bool skips() const { return false; }
  virtual void step(const Update& update) = 0;  // autograd may be on (in_parts has it off); what throws ends the run
  // State tensors by kind, where they are not whole with the parameter's shape (in blocks, with its last dim divided by
  // the block and rounded up); and counters by name, whole numbers or not. The tensors are the live ones: loading
  // copies into them. The same kinds always, from before the first step on.
  using Counters = std::map<std::string, double>;
  virtual std::map<std::string, OptimizerState> state() = 0;
  virtual Counters counters() const = 0;
  virtual void set_counters(const Counters& counters) = 0;
};

// An update, one thing after the other: gradients are scaled, `move` moves the weights, then average and copies follow.
DITTO_API void in_parts(const Update& update, const std::vector<OptimizedParameter>& parameters,
                        const std::function<void()>& move);
// The last of it by itself: average and copies follow the weights.
DITTO_API void follow(const Update& update, const std::vector<OptimizedParameter>& parameters);
// change(), of which nothing is left in `tensors` where Update::skip is true; these are copied meanwhile. Of what is
// one parameter's, so that the copies are small.
DITTO_API void unless_skipped(const Update& update, const std::vector<torch::Tensor>& tensors,
                              const std::function<void()>& change);
// What the device knows, read: for updates that the host makes itself. Waits for a device that is not the host.
DITTO_API bool is_skipped(const Update& update);
DITTO_API double clip_of(const Update& update);

}  // namespace ditto
