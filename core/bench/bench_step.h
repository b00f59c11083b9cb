// How fast a recipe trains on this machine: `ditto bench step`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"
#include "core/profile/step_breakdown.h"
#include "core/ranks/watch.h"

namespace ditto {

struct StepBenchOptions {
  int64_t warmup = 3;  // steps that are not timed: the first ones fill caches and choose kernels
  int64_t steps = 10;
  RankWatch* watch = nullptr;  // is told of every step
  bool breakdown = false;      // of where their time goes, at the price of looking
  std::string trace;           // file for a Chrome trace of one more step, by rank 0; "": none
};

struct StepBench {
  std::vector<double> seconds;  // of every timed step, in order
  std::optional<double> flops;  // of one step of the global batch, forward and backward; none: not counted
  double matmul_flops = 0;      // a second, of all ranks together, right after the steps; in the run's precision
  int64_t batch = 0, parameters = 0;
  double learned = 0;      // samples of a timed step that were learned from, on average
  int64_t peak_bytes = 0;  // of this rank's tensors, over the timed steps
  // On a GPU, of a recipe that is run.deterministic: the median step of the same one that is not, in the same process;
  // none: not measured.
  std::optional<double> free_median;
  double loss = 0;                                // of the last step that is timed: that it learns, and not on nans
  std::optional<StepBreakdown::Found> breakdown;  // of all timed steps of this rank; none: not asked for
  double median() const;
  double fastest() const;
  // Of what the matrix multiplication reaches, at the median step.
  double share() const { return flops.value_or(0) / median() / matmul_flops; }
};

// Trains for `warmup` + `steps` steps as `ditto train` would, data and averages included, without a run's folder,
// validation or checkpoints. Called by all ranks of the mesh. Throws what training throws.
StepBench bench_step(Recipe recipe, Registry& registry, const Mesh& mesh, const StepBenchOptions& options);

}  // namespace ditto
