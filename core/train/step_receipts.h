// What a run's receipts say of its steps (core/record/receipt.h), made by all ranks together.
#pragma once

#include <ditto/batch.h>

#include "core/data/loader.h"
#include "core/plugin/registry.h"
#include "core/record/receipt.h"
#include "core/record/tensor_hash.h"
#include "core/train/assembly.h"
#include "core/train/ema.h"

namespace ditto {

struct StepResult;

// All methods are called by every rank, in the order of the step; what they return is the same on all.
class StepReceipts {
 public:
  StepReceipts(Assembly& assembly, Ema& ema) : assembly_(assembly), ema_(ema) {}

  // A micro-batch as it was read, before encoders: of each sample that counts its place in the run's order, its number
  // in the source, and its tensors; a text's padding, zeros, adds nothing.
  void samples(const Batch& batch, const Loader& loader);
  // What is in .grad: the sum over all ranks and micro-batches, before clipping.
  void gradient();
  // The step is done: with the weights, and their average, as they are now.
  Receipt after(int64_t step, const StepResult& result);

  // The first line, or that of a run which goes on after `step`: with what its bits depend on. Under run.numerics =
  // "one" that is the recipe as far as it decides what is learned, plugins, data, and Ditto's version; under "fast"
  // everything else too that changes bits.
  Receipt beginning(int64_t step, const Registry& registry);

 private:
  void add_state(Receipt& receipt);
  Assembly& assembly_;
  Ema& ema_;
  HashSum samples_, gradient_;  // of this rank, in this step
};

}  // namespace ditto
