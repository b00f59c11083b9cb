// The matrix: which layouts are proven, and how.
#pragma once

#include <string>
#include <vector>

#include "tests/matrix/worker.h"

namespace ditto::matrix {

// core: a quick part of it; all; models: the models that are made of others' parts, a part of all; one: which layouts
// have one number, another part; faults: planted mistakes, each of which must be seen; checkpoints: what one layout has
// saved goes on as another; counts: communication against closed forms; device: what a single device can run.
std::vector<std::string> table_names();
std::vector<Case> table(const std::string& name);

}  // namespace ditto::matrix
