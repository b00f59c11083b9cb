// run.numerics = "one": fp32 bits that follow from the recipe alone, on every layout, thread count, micro-batch and
// instruction set (docs/choosing_a_layout.md, One number). What has no such bits yet is refused by name.
#pragma once

#include <string>

#include <ditto/data.h>
#include <ditto/parallel/tree_sum.h>

#include "core/config/recipe.h"

namespace ditto {

// The numbers that "one" gives are promised to stay from one version to the next (tests/epochs). A change that alters
// one begins a new epoch.
inline constexpr int kNumericsEpoch = 1;
inline bool is_one_number(const Recipe& recipe) { return recipe.run.numerics == "one"; }

inline SumOrder sum_order(const Recipe& recipe) { return is_one_number(recipe) ? SumOrder::tree : SumOrder::chain; }

// plugins.kernels, and the exact ones where they are needed.
std::vector<std::string> kernel_sets(const Recipe& recipe);

// Whether ranks share a sample's tokens: under "one" their gradients of weights are then added sample by sample.
bool shares_tokens(const ParallelOptions& parallel);

// Why "one" computes every sample by itself: micro-batches are nodes of the tree over a step's samples, of which a plan
// by sizes takes others than those that come next, and kernels make trees over tokens of samples that all have as many.
enum class Alone { no, sizes_differ, tokens_are_shared };
Alone each_alone(const Recipe& recipe, const Source& data);

// Error(config) about run.numerics.
[[noreturn]] void refuse_numerics(const std::string& found, const std::string& remedy);

// Throws Error(config) where run.audit asks to compute again what need not have the same bits again.
void check_audit(const Recipe& recipe);

// Whether run.bf16_in_fp32 is still to be measured.
inline bool measures_bf16(const Recipe& recipe) {
  return recipe.run.bf16_in_fp32 == std::vector<std::string>{kMeasured};
}
// Where run.bf16_in_fp32 names ops, and nothing is computed in bf16 by kernels that may be chosen: a sentence. It is no
// error, since what a run has noted there stays where somebody goes on with it in another precision.
std::string idle_bf16(const Recipe& recipe);

// What the recipe itself says. Throws Error(config) where "one" cannot be had with it; nothing with "fast".
void check_numerics(const Recipe& recipe);

}  // namespace ditto
