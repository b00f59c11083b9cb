// Communication of a step against closed forms. docs/layout_derivations.md derives them.
#pragma once

#include <map>
#include <string>

#include "tests/matrix/training.h"

namespace ditto::matrix {

using Counts = std::map<Traffic::Key, Traffic::Count>;

// What this rank asks of its peers in the last step. `mine` tells the shapes of parameters here, `one_rank` the choices
// of routers.
Counts expected_traffic(const Case& one, const Record& mine, const Record& one_rank, const Mesh& mesh);
// What differs; empty: nothing.
std::string differences(const Counts& counted, const Counts& expected);
std::string to_text(const Counts& counts);

}  // namespace ditto::matrix
