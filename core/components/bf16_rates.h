// How fast this processor computes ops on bf16 tensors, by each of two variants.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ditto/kernels.h>

#include "core/components/rates.h"

namespace ditto {

// An op's two ways: the variant that is chosen where no row computes in fp32, and the one that does.
struct Ways {
  std::string op, in_bf16, in_fp32;
  bool fp32_by_scores;  // what the rows' own scores choose
};
// Of all ops that have both, found by a call of each.
std::vector<Ways> find_ways(const std::vector<KernelRow>& rows, const std::vector<Op>& added);

// Calls a second of each of the two, of one and the same call: by op, and then by variant.
void measure(Rates& rates, const Ways& ways, const std::vector<KernelRow>& rows, const std::vector<Op>& added);

// Whether the way in fp32 is to be taken; nothing where one of the two has no rate.
std::optional<bool> is_faster_in_fp32(const Rates& rates, const Ways& ways);

}  // namespace ditto
