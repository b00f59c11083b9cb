// Kernel rows that compute ops on tensors in bf16 by kernels of fp32, as a recipe wants them: run.bf16_in_fp32.
#pragma once

#include <vector>

#include <ditto/kernels.h>

#include "core/config/recipe.h"

namespace ditto {

bool is_in_fp32(const KernelRow& row);

// Scores so that rows in fp32 compute the ops of run.bf16_in_fp32 where they can, and no others; as they come, where
// that is still to be measured. Pins stand above it.
void choose_ways(std::vector<KernelRow>& rows, const Recipe& recipe);
// Throws Error(config) for an op of run.bf16_in_fp32 that has no such row.
void require_ways(const std::vector<KernelRow>& rows, const Recipe& recipe);

}  // namespace ditto
