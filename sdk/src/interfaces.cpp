// Out-of-line destructors: one copy of each interface's type information, here, whatever plugins are loaded.
#include <ditto/ditto.h>

namespace ditto {

Optimizer::~Optimizer() = default;
Objective::~Objective() = default;
KernelSet::~KernelSet() = default;

}  // namespace ditto
