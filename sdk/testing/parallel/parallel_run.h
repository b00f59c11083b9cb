// One rank of a training, put together as the host does.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/parallel/program.h>

namespace ditto::testing {

using MakeStrategy = std::function<std::shared_ptr<ParallelStrategy>(const ParallelStrategy::Needs&)>;

// What is trained: every rank makes its own.
struct Trainee {
  std::function<std::shared_ptr<Model>()> model;
  // A micro-batch, in double precision, with a "target" as the prediction; or one of parts.
  std::function<Batch(int64_t number)> batch;
  std::shared_ptr<const OpTable> table = {};  // none: the reference kernels
};
Trainee parallel_trainee();  // parallel_model.h

// The piece of a whole tensor that an entry holds.
torch::Tensor piece_of(const torch::Tensor& whole, const LayoutEntry& entry);

class ParallelRun {
 public:
  // Strategies in the order of sharding; none: what others are compared with. `mesh` outlives it.
  ParallelRun(const Trainee& trainee, const Mesh& mesh, bool deterministic, const std::vector<MakeStrategy>& make = {});
  ParallelRun(const ParallelRun&) = delete;
  ParallelRun& operator=(const ParallelRun&) = delete;

  // A step's gradients, in the layout's tensors.
  void step(int64_t step, int64_t micro_batches);
  void descend();  // along them
  torch::Tensor predict(int64_t number);

  // The stream's fields (but constants) made whole, as a unit left them; and the prediction. Of a pack each sample's
  // own, put together along dim 0.
  struct Seen {
    std::string unit, field;  // "block 0", "x"
    torch::Tensor value;
  };
  std::vector<Seen> trace(int64_t number);  // of the units that run here
  std::string running;                      // what `trace` was running, where it threw

  Layout layout;
  std::map<int64_t, double> losses;  // of the last step's samples that ended here, by id

 private:
  Program program(const StepPlan& plan);
  torch::Tensor loss(const Stream& stream, const Outputs& outputs, const Batch& batch);
  torch::Tensor predict(const Batch& batch, Program& parts);
  void note(const std::string& unit, Stream stream, const Batch& batch, std::vector<Seen>& seen) const;
  void run_micro_batches(const StepPlan& plan);
  void end_accumulation(int64_t accumulation, const StepPlan& plan);
  void sum(bool data_axes_alone);
  void take(size_t entry, const torch::Tensor& sum, bool is_of_accumulation);
  AxisSet open_axes(size_t entry, bool data_axes_alone) const;
  void parameters_changed();
  bool in_step() const;

  const Trainee trainee_;
  const Mesh& mesh_;
  const bool deterministic_;
  std::shared_ptr<Model> model_;
  Context ctx_;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies_;  // in the order of sharding
  std::vector<ParallelStrategy*> wraps_;                       // innermost first
  std::unique_ptr<ModelProgram> units_;
  double samples_ = 1;                        // of the step
  std::vector<AxisSet> left_;                 // along the layout: what a strategy sums itself
  std::vector<torch::Tensor> accumulations_;  // along the layout: sums over data axes of the accumulations so far
};

}  // namespace ditto::testing
