// What a run's receipts say of its steps (core/receipts/receipt.h), made by all ranks together.
#pragma once

#include <vector>

#include <ditto/batch.h>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/assembly/step_observer.h"
#include "core/data/loader.h"
#include "core/plugin/registry.h"
#include "core/receipts/receipt.h"
#include "core/receipts/tensor_hash.h"

namespace ditto {

// Looks on at steps. Weights and their average are hashed while the optimizer writes them, where it tells of that, and
// else after it: what costs is to bring them from memory. After it also where the device decides whether they stay.
class StepReceipts final : public StepObserver {
 public:
  // All outlive it.
  StepReceipts(Assembly& assembly, Ema& ema, const Loader& loader) : assembly_(assembly), ema_(ema), loader_(loader) {}

  // Of each sample that counts its place in the run's order, its number in the source, and its tensors; a text's
  // padding, zeros, adds nothing.
  void has_read(const Batch& batch) override;
  void begins(int64_t step, Program& program) override;
  // The sum over all ranks and micro-batches, before clipping.
  void has_gradients(const LossLedger& losses, const torch::Tensor& norm) override;
  void updates(Update& update) override;

  // By every rank; the same on all. The step is done: with the weights as they are now, and where it is due their
  // average.
  Receipt after(int64_t step, const StepResult& result);

  // The first line, or that of a run which goes on after `step`: with what its bits depend on. Under run.numerics =
  // "one" that is the recipe as far as it decides what is learned, plugins, data, and Ditto's version; under "fast"
  // everything else too that changes bits.
  Receipt beginning(int64_t step, const Registry& registry);

 private:
  // Along the learned tensors, as far as hashed on the way.
  struct Hashed {
    HashSum sum;
    std::vector<bool> tensors;
  };
  void add_state(Receipt& receipt, bool with_average);
  void take(Hashed& hashed, size_t i, const torch::Tensor& tensor, int64_t begin, int64_t end) const;
  HashSum whole(const Hashed& hashed, const std::function<torch::Tensor(size_t)>& tensors) const;

  Assembly& assembly_;
  Ema& ema_;
  const Loader& loader_;
  bool is_average_due_ = true;
  HashSum samples_, gradient_;  // of this rank, in this step; so are these:
  Hashed weights_, average_;
};

}  // namespace ditto
