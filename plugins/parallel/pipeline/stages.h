// Which blocks a stage has.
#pragma once

#include <cstdint>
#include <vector>

namespace ditto {

// Each stage's first block, and behind the last the number of blocks; no stage is empty. `stages` is at most `blocks`.
//
// As many blocks as may be: stage k begins with block floor(blocks * k / stages).
std::vector<int64_t> stages_by_number(int64_t blocks, int64_t stages);
// By what the blocks cost: the stage that costs most costs as little as may be, and among such cuts the sum of the
// stages' squares is smallest, and then stages begin as early as may be. Where all blocks cost the same: by number.
std::vector<int64_t> stages_by_cost(const std::vector<double>& costs, int64_t stages);

}  // namespace ditto
