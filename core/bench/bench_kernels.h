// How fast each variant of each op is at a recipe's shapes, beside this machine's memory and products:
// `ditto bench kernels`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

struct KernelBenchOptions {
  double seconds = 0.2;          // for each variant and call, after one that is not timed
  std::vector<std::string> ops;  // these alone; empty: all
};

struct KernelBench {
  // Calls of one variant, each on other numbers than the one before: what goes in comes from memory, unless a hundred
  // sets of it fit into a cache; what comes out may stay in one.
  struct Pass {
    std::vector<double> seconds;
    int64_t bytes = 0;  // that have to be read and written at the least: all that goes in and comes out, once
    double flops = 0;   // of matrix products in the op's meaning: a multiplication and an addition are two
    double median() const;
  };
  struct Variant {
    std::string name;     // "reference": the op's meaning on ATen
    bool chosen = false;  // by the recipe
    bool copies = false;  // what does not lie as a contiguous tensor does (KernelRow::copies)
    Pass forward;
    std::optional<Pass> backward;  // none: the call asks for no gradient
  };
  struct Call {
    std::string op, text;        // "linear bf16 [2048, 384] [1536, 384] [1536]"
    int64_t calls = 0;           // a step; 0: the recipe makes none, and this is the largest of the op's test cases
    std::vector<Variant> timed;  // the chosen one first
    std::vector<std::string> cannot;  // variants that cannot compute it
  };
  std::vector<Call> calls;
  double matmul_flops = 0, stream_bytes = 0;  // a second, in the run's precision, before the calls
  // The least time that products or bytes take at these rates, over the median.
  double share(const Pass& pass) const;
  bool is_bound_by_products(const Pass& pass) const;
};

// Takes one step of the recipe, and times what it has called. One rank, on a processor. Throws what training throws,
// and Error(config) for an op that nobody has.
KernelBench bench_kernels(Recipe recipe, Registry& registry, const Mesh& mesh, const KernelBenchOptions& options);

}  // namespace ditto
