// Routers' choices: written down, compared with another run's, or replaced by them.
#pragma once

#include <ditto/objective.h>

#include "tests/matrix/training.h"

namespace ditto::matrix {

// Stands in front of an assembly's objective, to know which samples a forward is of. Takes Record::picks from `given`
// where `replay`; counts in `record` what differs from `given`, or keeps what is chosen where there is none.
void watch_routers(Assembly& assembly, Record& record, const Record* given, bool replay, int64_t samples);

}  // namespace ditto::matrix
