// Whether a recipe's model can be cut as its degrees say, found out before any rank is started.
#pragma once

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// Puts rank 0 of `ranks` together in a child process, on a mesh without connections, where the recipe cuts the model or
// its tokens (tensor, expert, context, pipeline); else does nothing. Returns 0, or the exit code of a refusal, which it
// has printed. Anything else that goes wrong there is left to the ranks. To be called before the process has other
// threads.
int rehearse_layout(const Recipe& recipe, Registry& registry, int ranks);

}  // namespace ditto
