// Where a recipe's data says which samples are held out, and another place for it.
#pragma once

#include <string>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// The recipe's source holds out what lies at `place` from now on: it is given to the source's own option of a place
// whose name begins with "validation_", of a folder its shards (those that are held out by their names, or all). An
// address stays as it is; other places are the user's, from where they stand. Throws Error(config) where the source has
// no such option, and for a blend.
void hold_out(Recipe& recipe, Registry& registry, const std::string& place);

}  // namespace ditto
