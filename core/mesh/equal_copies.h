// Under run.numerics = "one" a parameter that is a copy on ranks which share a sample, or its layers, has a whole
// gradient on each of them (replicated.h). A model that uses one on what these ranks have cut, and does not say so,
// would train wrong in silence: so one step's gradients are compared.
#pragma once

#include <ditto/parallel/layout.h>

namespace ditto {

// Throws Error(plugin) that names the first parameter whose gradients, summed over data ranks, differ between copies
// along the tensor or the context axis. Called by all ranks.
void check_equal_copies(const Layout& layout, const Mesh& mesh);

}  // namespace ditto
