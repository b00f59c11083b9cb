// The matrix: which layouts are proven, how, and what is written about it.
#pragma once

#include <string>
#include <vector>

#include "tests/matrix/case.h"

namespace ditto::matrix {

// core: a quick part of it; all; faults: planted mistakes, each of which must be seen; checkpoints: what one layout has
// saved goes on as another; counts: communication against closed forms.
std::vector<std::string> table_names();
std::vector<Case> table(const std::string& name);

}  // namespace ditto::matrix
