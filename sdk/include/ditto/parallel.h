// A parallel strategy: knows no model. All hooks have an identity default.
//
// Core calls them in three fixed orders. shard: pipeline, tensor, expert, then fsdp or ddp. wrap, innermost first:
// tensor, context, recompute, fsdp. split, outermost first: context, then sequence; join in reverse.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ditto/layout.h>
#include <ditto/mesh.h>
#include <ditto/plugin.h>

namespace ditto {

// What a unit reads and writes: condition: batch -> stream.condition; tokens: batch -> stream's tokens and constants;
// a block: stream -> stream; head: stream -> prediction.
struct UnitCall {
  const Batch& batch;
  Stream& stream;
  torch::Tensor& prediction;
  Context& ctx;
};
using UnitRun = std::function<void(const Unit&, UnitCall&)>;

// A step as its ranks share it. Micro-batch j holds samples [j * micro_batch, (j + 1) * micro_batch) of the step's
// global batch and is run by data rank j modulo the number of data ranks, in rounds: round i holds j = i * n … i * n +
// n - 1.
struct StepPlan {
  int64_t step = 0;
  int64_t micro_batches = 1;  // of the global batch
  int64_t rounds = 1;
  int64_t mine = 1;  // how many of them this rank runs: the last round may leave it out
  Phase phase = Phase::train;
};

// The step's parts as core composes them, with every strategy's wraps inside. A pipeline runs them in its own order.
struct Program {
  std::function<Batch(Batch)> prepare;                               // the objective's draws
  std::function<Stream(const Batch&)> begin;                         // condition, tokens, split
  std::function<void(int64_t first, int64_t last, Stream&)> blocks;  // wrapped blocks [first, last)
  std::function<torch::Tensor(Stream&, const Batch&)> finish;        // join, head, this rank's share of the loss
};

class DITTO_API ParallelStrategy {
 public:
  static constexpr const char* kKind = "parallel";
  struct Needs {
    const Mesh* mesh;           // outlives the strategy
    bool deterministic = true;  // sum in the order of micro-batches
    bool token_local = true;    // of the model; a strategy that cuts tokens refuses where it is false
  };
  virtual ~ParallelStrategy();

  virtual std::optional<Axis> axis() const = 0;      // none: it cuts nothing (recompute, offload)
  virtual void claim(Layout&, int64_t /*depth*/) {}  // pipeline: drop the entries of other ranks' units
  // Cuts parameters, once, before the first forward. The layout outlives the strategy, which may keep a reference.
  virtual void shard(Layout&) {}
  virtual UnitRun wrap_unit(UnitRun run) { return run; }
  virtual AttentionOp wrap_attention(AttentionOp op) { return op; }
  virtual Context::UnitRunner wrap_attention_unit(Context::UnitRunner run) { return run; }
  virtual void split(Stream&) {}
  virtual void join(Stream&) {}
  virtual void begin_step(const StepPlan&) {}
  virtual void begin_micro_batch(int64_t /*index*/, const StepPlan&) {}
  // Runs all of this rank's micro-batches, forward and backward, in an order of its own. Default: false, core does.
  virtual bool train_step(const std::vector<Batch>& /*mine*/, Program&, const StepPlan&) { return false; }
  // What is still pending after the last backward; core's sum over copies follows.
  virtual void sync_gradients() {}
};

}  // namespace ditto
