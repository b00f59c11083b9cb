// How fast a recipe's optimizer moves its weights, beside this machine's memory: `ditto bench optimizer`.
#pragma once

#include <cstdint>
#include <vector>

#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

struct OptimizerBenchOptions {
  int64_t warmup = 2;  // rounds that are not timed
  int64_t rounds = 10;
};

struct OptimizerBench {
  // What is timed, once a round, all in turn; seconds.
  struct Pass {
    std::vector<double> seconds;
    int64_t bytes = 0;    // that have to be read and written at the least
    double rate() const;  // bytes a second, of the median
  };
  Pass update;  // weights, states, average and compute copies
  Pass norm;    // of the gradients
  Pass stream;  // 256 MB of numbers multiplied where they are
  int64_t parameters = 0;
};

// Updates the recipe's parameters with gradients that are drawn once, as a step does, without its data, forward and
// backward. One rank. Throws what training throws.
OptimizerBench bench_optimizer(Recipe recipe, Registry& registry, const Mesh& mesh,
                               const OptimizerBenchOptions& options);

}  // namespace ditto
