// One rank of a training of parallel_model, put together as the host does.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/parallel/program.h>

namespace ditto::testing {

using MakeStrategy = std::function<std::shared_ptr<ParallelStrategy>(const ParallelStrategy::Needs&)>;

class ParallelRun {
 public:
  // Without a strategy: what the others are compared with. `mesh` outlives it.
  ParallelRun(const Mesh& mesh, bool deterministic, const MakeStrategy& make = {});
  ParallelRun(const ParallelRun&) = delete;
  ParallelRun& operator=(const ParallelRun&) = delete;

  // A step's gradients, in the layout's tensors.
  void step(int64_t step, int64_t micro_batches);
  void descend();  // along them
  torch::Tensor predict(int64_t number);

  Layout layout;

 private:
  Program program(const StepPlan& plan);
  torch::Tensor loss(const Stream& stream, const Outputs& outputs, const Batch& batch) const;
  void run_micro_batches(const StepPlan& plan);
  void end_accumulation(int64_t accumulation, const StepPlan& plan);
  void sum(bool data_axes_alone);
  void take(size_t entry, const torch::Tensor& sum, bool is_of_accumulation);
  AxisSet open_axes(size_t entry, bool data_axes_alone) const;
  void parameters_changed();

  const Mesh& mesh_;
  const bool deterministic_;
  std::shared_ptr<Model> model_;
  Context ctx_;
  std::shared_ptr<ParallelStrategy> strategy_;
  std::unique_ptr<ModelProgram> units_;
  double samples_ = 1;                        // of the step
  std::vector<AxisSet> left_;                 // along the layout: what the strategy sums itself
  std::vector<torch::Tensor> accumulations_;  // along the layout: sums over data axes of the accumulations so far
};

}  // namespace ditto::testing
