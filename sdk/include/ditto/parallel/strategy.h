// A parallel strategy: knows no model. All hooks have an identity default.
//
// Core calls them in fixed orders. Once: claim, in the reverse of kCutOrder (layout.h), then shard, in kCutOrder, then
// the wraps, in_order_of_wrapping. Of every stream: split, outermost first: context, then sequence; join in reverse.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/kernels.h>
#include <ditto/parallel/layout.h>
#include <ditto/parallel/mesh.h>
#include <ditto/parallel/tree_sum.h>
#include <ditto/plugin.h>

namespace ditto {

// What a unit reads and writes: condition: batch -> stream.condition; tokens: batch -> stream's tokens and constants;
// a block: stream -> stream; head: stream -> outputs' "prediction"; objective: outputs -> outputs' "loss.NAME".
struct UnitCall {
  const Batch& batch;
  Stream& stream;
  Outputs& outputs;
  Context& ctx;
  // What is run in the place of the model's unit (an objective's); none: the model's.
  std::function<void()> body = {};
};
using UnitRun = std::function<void(const Unit&, UnitCall&)>;

// A step as its ranks share it. Micro-batch j holds samples [j * micro_batch, (j + 1) * micro_batch) of the step's
// global batch and is run by data rank j modulo the number of data ranks, in accumulations: accumulation i holds j = i
// * n … i * n + n - 1.
struct StepPlan {
  int64_t step = 0;
  int64_t micro_batches = 1;  // of the global batch
  int64_t accumulations = 1;
  int64_t mine = 1;  // how many of them this rank runs: the last accumulation may leave it out
  bool runs(int64_t accumulation) const { return accumulation < mine; }
  Phase phase = Phase::train;
};

// The step's parts as core composes them, with every strategy's wraps inside. A pipeline runs them in its own order.
struct Program {
  std::function<Batch(Batch)> prepare;        // the objective's draws
  std::function<Stream(const Batch&)> begin;  // first stage: condition, tokens, constants, split
  // Later stages: the constants of a stream that came from the stage before, whose tokens are split already.
  std::function<void(const Batch&, Stream&)> constants;
  std::function<void(int64_t first, int64_t last, Stream&)> blocks;  // wrapped blocks [first, last)
  std::function<Outputs(Stream&, const Batch&)> head;                // last stage: join, head -> "prediction" and more
  // Last stage: this rank's share of the run's loss, times the loss scale.
  std::function<torch::Tensor(const Stream&, const Outputs&, const Batch&)> loss;
  std::function<void(const Tensors& roots, const Tensors& gradients)> backward;  // gradients: undefined for a loss
  std::function<void(int64_t accumulation)>
      accumulation_done;  // after the backward of this rank's micro-batch of that accumulation
};

class DITTO_API ParallelStrategy {
 public:
  static constexpr const char* kKind = "parallel";
  static constexpr std::uint32_t kAbi = 12;
  struct Needs {
    const Mesh* mesh;                     // outlives the strategy
    bool deterministic = true;            // sum in the order of micro-batches
    bool token_local = true;              // of the model; a strategy that cuts tokens refuses where it is false
    at::ScalarType compute = at::kFloat;  // what layers multiply in
    int64_t depth = 0;                    // the model's blocks
    // Operations of a forward of each block, counted on shapes alone when it is asked, in a constructor; none of a
    // model that cannot be counted.
    std::function<std::vector<double>()> block_costs = {};
    bool streams = true;  // false, of an encoder: no stream of tokens that could be cut
    // Which order gradients of micro-batches are summed in, where `deterministic`. Of a tree a gradient that a
    // micro-batch does not have is +0, of a chain it is left out (-0).
    SumOrder sum_order = SumOrder::chain;
    // Tokens of a leaf under run.numerics = "one": sums of ranks are then made of nodes (replicated.h), a tensor that
    // is whole has a gradient that is whole, and slices of tokens consist of leaves. 0: numerics are "fast".
    int64_t token_leaf = 0;
  };
  virtual ~ParallelStrategy();

  virtual std::optional<Axis> axis() const = 0;  // none: it cuts nothing (recompute, offload)
  virtual void claim(Layout&) {}                 // pipeline: drop the entries of other ranks' units
  // Cuts parameters, once, before the first forward. The layout outlives the strategy, which may keep a reference; an
  // entry's tensor may become another leaf than the model's.
  virtual void shard(Layout&) {}
  virtual UnitRun wrap_unit(UnitRun run) { return run; }
  virtual AttentionOp wrap_attention(AttentionOp op) { return op; }
  virtual Context::UnitRunner wrap_attention_unit(Context::UnitRunner run) { return run; }
  using TokenGather = std::function<torch::Tensor(const torch::Tensor& x, const Stream& stream)>;
  virtual TokenGather wrap_token_gather(TokenGather gather) { return gather; }
  virtual void split(Stream&) {}
  virtual void join(Stream&) {}

  // Data ranks must run the same number of forwards and backwards together: one that has no micro-batch left in an
  // accumulation runs an empty one (samples of weight 0), which adds to no sum.
  virtual bool in_step() const { return false; }
  virtual void begin_step(const StepPlan&) {}
  // The axes along which this strategy itself sums the entry's gradient over its copies, in steps of this plan: core
  // then leaves them out. Asked after shard, before the first step. Two strategies that name the same axis are refused:
  // the sum would be made twice.
  virtual AxisSet sums(const LayoutEntry&, const StepPlan&) const { return {}; }
  // On all data ranks, after each accumulation's backward, before core's sum over copies takes up the accumulation.
  virtual void end_accumulation(int64_t /*accumulation*/, const StepPlan&) {}
  // Runs this rank's micro-batches, forward and backward, in an order of its own. Default: false, core does.
  virtual bool train_step(const std::vector<Batch>& /*mine*/, Program&, const StepPlan&) { return false; }
  // One forward without gradients, prediction on every rank. Default: none, core does.
  virtual std::optional<torch::Tensor> predict(const Batch&, Program&) { return std::nullopt; }
  // What is still pending after the last backward; core's sum over copies follows. Then every entry that this rank
  // trains has its gradient in entry.tensor.
  virtual void sync_gradients() {}
  // The layout's tensors have new values (made, loaded, updated, or exchanged with the average): bring them to where
  // the model reads them.
  virtual void parameters_changed() {}
  // With Needs::token_leaf what it sums and exchanges has the bits of one rank. One that does not say so is refused
  // under run.numerics = "one".
  virtual bool exact() const { return false; }
  // Later steps depend on numbers that it keeps from earlier ones and that no checkpoint has (a compressed gradient's
  // rest): a run that goes on says that equal bits end there.
  virtual bool remembers() const { return false; }
  // Numbers that it keeps between steps, besides the layout's tensors and what it has provided. For counts of memory.
  virtual Tensors held() const { return {}; }
};

// A model's strategies as they are wrapped around its units, innermost first: tensor, expert, context, those that serve
// no axis (recompute, offload), shard, replicate, pipeline.
DITTO_API std::vector<ParallelStrategy*> in_order_of_wrapping(
    const std::vector<std::shared_ptr<ParallelStrategy>>& strategies);

}  // namespace ditto
