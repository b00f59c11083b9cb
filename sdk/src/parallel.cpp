#include <ditto/parallel/strategy.h>

namespace ditto {

ParallelStrategy::~ParallelStrategy() = default;

}  // namespace ditto
