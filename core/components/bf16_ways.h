// Ops on tensors in bf16 that a processor may compute faster by its kernels of fp32: a kernel row whose variant begins
// with "in_fp32" widens what comes, and rounds what leaves. Which of the two ways is the faster one is no flag of the
// processor, and so it is measured: once a machine and LibTorch, and kept in the user's cache. A run keeps what it
// began with: run.bf16_in_fp32.
#pragma once

#include <string>

#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// For a recipe that leaves run.bf16_in_fp32 to be measured, and computes in bf16 on the CPU: takes what rank 0 has in
// its cache, or measures. Called by all of `world`.
void measure_ways(Recipe& recipe, Registry& registry, const Group& world);
// A recipe that left it to be measured takes those of the run that it goes on with: of one that noted none, those that
// processors' flags chose then.
void keep_ways(Recipe& recipe, Registry& registry, const std::string& saved_toml);

}  // namespace ditto
