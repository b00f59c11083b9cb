// What is written about the matrix.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/matrix/worker.h"

namespace ditto::matrix {

// What became of cases, as a page: a table for each model and precision.
std::string as_page(const std::vector<Case>& cases, const std::vector<std::pair<size_t, Outcome>>& outcomes);

}  // namespace ditto::matrix
