// Trainings that nobody chose: a model, its options and a layout of up to eight ranks for it, or two, of which the
// second goes on from what the first has saved. None of them may be refused.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/matrix/case.h"

namespace ditto::matrix {

// `count` cases, or one more. The same ones for the same seed.
std::vector<Case> random_cases(uint64_t seed, int64_t count);

}  // namespace ditto::matrix
