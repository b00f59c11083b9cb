// Whether a run may go on from a checkpoint with the recipe it is given now.
#pragma once

#include <string>
#include <vector>

#include "core/config/option_effects.h"
#include "core/config/recipe.h"

namespace ditto {

// Compares the recipe of a checkpoint with today's. Returns a line for each difference. Throws Error(config) if one
// changes what is learned and its key (or its section) is not among `allowed`.
std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const std::vector<std::string>& allowed);

}  // namespace ditto
