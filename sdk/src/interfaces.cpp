// Out-of-line destructors: one copy of each interface's type information, here, whatever plugins are loaded.
#include <ditto/ditto.h>
#include <ditto/transport.h>

namespace ditto {

WholeTensors::~WholeTensors() = default;
Optimizer::~Optimizer() = default;
Objective::~Objective() = default;
KernelSet::~KernelSet() = default;
Transport::~Transport() = default;

}  // namespace ditto
