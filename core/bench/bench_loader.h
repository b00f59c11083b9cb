// How fast a recipe's data comes, without a model: `ditto bench loader`.
#pragma once

#include <cstdint>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

struct LoaderBenchOptions {
  int64_t warmup = 3;  // micro-batches that are not timed
  double seconds = 5;  // at least; at most the micro-batch longer that is then on its way
};

struct LoaderBench {
  int64_t samples = 0;   // timed ones
  int64_t left_out = 0;  // of them: those that could not be decoded
  int64_t bytes = 0;     // of their tensors
  int64_t micro_batch = 0, source_samples = 0;
  double seconds = 0;
  double computed_s = 0;  // processor time of all threads of this process
};

// Reads micro-batches of the training data in the run's order, as `ditto train` would and as fast as they come. One
// holds as many samples as a run of one rank would give it at most: which of them batch.plan groups is left out, since
// it asks the model. Throws what reading throws.
LoaderBench bench_loader(Recipe& recipe, Registry& registry, const LoaderBenchOptions& options);

}  // namespace ditto
