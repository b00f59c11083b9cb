// Which layouts have one number (run.numerics).
#pragma once

#include <vector>

#include "tests/matrix/case.h"

namespace ditto::matrix {

std::vector<Case> one_number_cases();
std::vector<Case> few_one_number_cases();  // of them

}  // namespace ditto::matrix
