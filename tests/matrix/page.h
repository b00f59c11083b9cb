// What is written about the matrix.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/matrix/worker.h"

namespace ditto::matrix {

// What became of cases, as a page: a table for each model and precision. One that was not run whole this time is as it
// was before.
using Outcomes = std::map<std::string, Outcome>;  // by title
std::string as_page(const std::vector<Case>& cases, const Outcomes& outcomes, const std::string& before);

}  // namespace ditto::matrix
