// The gradient sums of a step, from the layout alone, and the global norm. No strategy, layer or model marks what is
// partial: the gradient of a parameter's copy is summed over the axes it is copied along.
#pragma once

#include <memory>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/parallel/layout.h>
#include <ditto/parallel/ordered_sum.h>
#include <ditto/parallel/strategy.h>

namespace ditto {

// Sums over the data axes in the order of micro-batches, so that a step's gradients have the same bits on any number of
// data ranks; then over the axes of the other copies, by one all-reduce for each set of axes. With `deterministic`
// false both are one all-reduce after local accumulation. What a strategy sums itself is left to it.
//
// `order` is which sum over micro-batches that is. A chain is what autograd's accumulation makes on one rank; a tree is
// made here there too, of gradients taken out after each micro-batch, with floor(log2(J)) gradients more (tree_sum.h).
//
// A step, on every rank alike:
//   sum.begin_step(strategies, plan);
//   for (accumulation = 0 … plan.accumulations - 1) { if (accumulation < plan.mine) forward and backward;
//   sum.after_micro_batch(accumulation, plan); } strategies' sync_gradients(); sum.finish(plan);
// Gradients are in .grad of the layout's leaves, undefined before the step. Throws Error(distributed) if a peer is
// lost.
class GradientSum {
 public:
  GradientSum(Layout& layout, const Mesh& mesh, bool deterministic,  // both outlive it
              SumOrder order = SumOrder::chain);
  ~GradientSum();

  // Asks the strategies who of them sums what in steps of this plan, and writes it into the entries' `summed`. Throws
  // Error(config) where two name the same axis of an entry. Without it `summed` is taken as it is.
  void begin_step(const std::vector<std::shared_ptr<ParallelStrategy>>& strategies, const StepPlan& plan);

  // Takes the accumulation's gradients out of .grad and hands them to their owners, where the data axes have several
  // ranks; they travel while the next accumulation computes.
  void after_micro_batch(int64_t accumulation, const StepPlan& plan);
  // Leaves the step's gradients in .grad of every leaf that requires one; where nothing made one, zeros (-0 of a chain,
  // +0 of a tree). Throws
  // Error(plugin) where a strategy has written `summed` by itself: another may sum the same.
  void finish(const StepPlan& plan);

 private:
  // Entries of one dtype that are summed over the same data axes, as one flat tensor.
  struct Part {
    AxisSet axes;
    std::vector<LayoutEntry*> entries;
    OrderedSum sum;
    torch::Tensor sent;  // on its way
  };
  // What is left to sum for this entry in this step, among the data axes or all axes.
  AxisSet open_axes(const LayoutEntry& entry, bool data) const;
  void collect_parts();
  void check_declared() const;
  int active_members(const AxisSet& axes, int64_t accumulation, const StepPlan& plan) const;
  void receive_accumulation();
  void add_here();
  void sum_copies();
  torch::Tensor flatten(const std::vector<LayoutEntry*>& entries) const;
  // Of a gradient that is not there.
  double nothing() const { return order_ == SumOrder::tree ? 0.0 : -0.0; }

  Layout& layout_;
  const Mesh& mesh_;
  const bool deterministic_;
  const SumOrder order_;
  std::vector<std::unique_ptr<Part>> parts_;  // of the current step
  std::vector<TreeSum> here_;                 // trees that are made here, along the layout
  std::vector<AxisSet> declared_;             // along the layout: what strategies sum in it
};

// The 2-norm of all gradients, every parameter counted once, on every rank. Summed in fp64 and rounded to fp32 (not
// where a gradient is fp64). Its bits do not depend on the number of data ranks; with `exact`, for which gradients are
// fp32 on the CPU, on no layout and no number of threads (exact_norm.h). A gradient that is not finite makes it so.
double grad_norm(const Layout& layout, const Mesh& mesh, bool exact = false);
// The same on the run's device, [] fp64, for which the host does not wait. On the CPU the same bits; on a GPU sums have
// another order, and are made by the op "square_sum".
torch::Tensor grad_norm_on(torch::Device device, const Layout& layout, const Mesh& mesh, const OpTable& ops,
                           bool exact = false);

// What gradients are multiplied by so that their norm, which is `norm` now, is at most `largest`; 1: they stay.
double clip_factor(double norm, double largest);
torch::Tensor clip_factor(const torch::Tensor& norm, double largest);  // the same bits, wherever the norm is

}  // namespace ditto
