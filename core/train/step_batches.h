// From a step's share to what its model sees: this rank's micro-batches, read and encoded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/assembly/step_shares.h"
#include "core/data/loader.h"
#include "core/process/side_thread.h"

namespace ditto {

// With loader.encode_ahead = 1 those of the next step are read when a step begins, and encoded while it is computed, by
// a thread and along groups of ranks that are theirs. The same bits: encoders draw by samples, and keep nothing.
class StepBatches {
 public:
  struct Loaded {
    std::vector<Batch> batches;
    double weight;                  // of the samples of all ranks together
    std::vector<int64_t> left_out;  // places of those that some rank could not decode
  };
  // All outlive it.
  StepBatches(Assembly& assembly, Loader& loader, const StepShares& shares);

  // Of the step whose samples begin at place `first`. `has_read` is told of each micro-batch that is this rank's.
  // Throws what reading and encoding throw, the latter also where it was done ahead.
  Loaded load(const StepShares::Step& step, int64_t first, const std::function<void(const Batch&)>& has_read);
  // One micro-batch, after what is encoded ahead: ranks that encode together do so in one order.
  Batch encode(const Batch& read);

  bool looks_ahead() const { return side_.has_value(); }
  // Reads the step that will be asked for next, and begins to encode it.
  void begin(const StepShares::Step& step, int64_t first);
  bool is_encoding() const { return side_ && side_->is_at_work(); }
  // Until nothing is encoded beside this thread. Throws what the encoding threw, where other ranks may wait for this
  // one's part in it; else `load` does.
  void wait();
  int64_t bytes_ahead() const;  // of what is encoded and not asked for yet, on the device

  // Of this rank: those of its own, and where networks run in step, those of others that count nothing.
  int64_t accumulations(const StepPlan& plan) const {
    return assembly_.networks->in_step() ? plan.accumulations : plan.mine;
  }

 private:
  struct Read {
    std::vector<Batch> mine, idle;
    std::vector<int64_t> left_out;
  };
  struct Ahead {
    int64_t step, first;
    Read read;
    std::vector<Batch> batches;
  };
  Read read(const StepShares::Step& step, int64_t first);
  Batch encoded(const Batch& read) const;
  std::vector<Batch> encoded(std::vector<Batch> mine, std::vector<Batch> idle) const;
  std::vector<Batch> taken_over();

  Assembly& assembly_;
  Loader& loader_;
  const StepShares& shares_;
  std::optional<Ahead> ahead_;
  std::optional<SideThread> side_;  // last: it ends before what it works on
};

}  // namespace ditto
