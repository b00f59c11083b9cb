// Whether a recipe's parts go together and its model can be cut as its degrees say, found out before any rank starts.
#pragma once

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// Puts rank 0 of `ranks` together in a child process, on a mesh without connections, where the recipe cuts the model or
// its tokens (tensor, expert, context, pipeline); else does nothing. Returns 0, or the exit code of a refusal, which it
// has printed. Anything else that goes wrong there is left to the ranks. To be called before the process has other
// threads.
int rehearse_layout(const Recipe& recipe, Registry& registry, int ranks);

// Puts rank 0 of `ranks` together in the same way whatever the recipe cuts, on the processor, data opened and no weight
// made, plans the first step, and prints every refusal; then, where there are replicas or shards, once more with them,
// on shapes alone. Returns 0 or its exit code. Throws Error(config) where an axis has several ranks and no plugin.
int rehearse(Recipe recipe, Registry& registry, int ranks);

}  // namespace ditto
