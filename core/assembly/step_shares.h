// How the samples of a step are shared among the ranks.
#pragma once

#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/parallel/strategy.h>

#include "core/config/numerics.h"
#include "core/config/run_options.h"
#include "core/data/batch_plan.h"

namespace ditto {

// Samples of a micro-batch: run.micro_batch, or what the batch gives a data rank.
int64_t asked_micro_batch(const RunOptions& run, int64_t data_ranks);

// ", micro-batches of 4 samples where 5 were asked for": with run.numerics = "one" they are runs of samples as they
// come, rounded down to powers of two, or single samples (core/config/numerics.h). Empty where that changes nothing.
std::string micro_batch_report(const RunOptions& run, const Mesh& mesh, Alone alone = Alone::no,
                               const std::string& plan = BatchOptions().plan);

class StepShares {
 public:
  // `sizes` is asked for by plans that look at them; the mesh may go.
  StepShares(const RunOptions& run, const BatchOptions& batch, const Mesh& mesh, BatchPlanner::Sizes sizes,
             Alone alone = Alone::no);

  struct Step {
    StepPlan plan;
    std::vector<Places> micro_batches;  // of the global batch; none: no sample has a size that is learned from
    std::vector<int64_t> left_out;      // places of samples whose size is not learned from, ascending
  };
  // The step whose samples begin at place `first`. Throws Error(config) where its plan cannot be made.
  Step step(int64_t number, int64_t first, Phase phase) const;
  // This rank's micro-batch in an accumulation; where it has none, the step's first, whose samples then count nothing.
  const Places& mine(const Step& step, int64_t accumulation) const;
  // A data rank's micro-batch in an accumulation; null: it has none.
  const Places* of(const Step& step, int64_t accumulation, int64_t rank) const;
  // Those of all data ranks in an accumulation.
  Places of_all(const Step& step, int64_t accumulation) const;
  // The batch's samples weigh by what the recipe says; what counts nothing still does.
  void weigh(Batch& batch) const;
  // Of all of a step's samples but those left out here besides, at ascending places.
  double weight(const Step& step, const std::vector<int64_t>& left_out) const;
  int64_t batch() const { return batch_; }
  int64_t micro_batch() const { return micro_batch_; }  // samples of one at most

 private:
  int64_t batch_, micro_batch_, ranks_, rank_;
  BatchPlanner planner_;
};

}  // namespace ditto
