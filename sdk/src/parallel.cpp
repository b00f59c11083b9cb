#include <ditto/parallel.h>

namespace ditto {

ParallelStrategy::~ParallelStrategy() = default;

}  // namespace ditto
