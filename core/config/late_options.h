// Options that cannot take effect in the steps that a run makes, or in what it computes with.
#pragma once

#include <string>
#include <vector>

#include "core/config/recipe.h"

namespace ditto {

// A sentence for each. They are said and not refused: a short trial of a long recipe is legal.
std::vector<std::string> late_options(const Recipe& recipe);
// What a run, and who checks its recipe, says of its options: those, what was left out of it, and what was measured.
std::vector<std::string> notes_on_options(const Recipe& recipe);

}  // namespace ditto
