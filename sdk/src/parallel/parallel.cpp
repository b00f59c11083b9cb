#include <ditto/parallel/strategy.h>

namespace ditto {

ParallelStrategy::~ParallelStrategy() = default;

// Recompute stands inside of what gathers parameters, and outside of what exchanges tokens and activations.
std::vector<ParallelStrategy*> in_order_of_wrapping(const std::vector<std::shared_ptr<ParallelStrategy>>& strategies) {
  const std::vector<std::optional<Axis>> order{Axis::tensor, Axis::expert,    Axis::context, std::nullopt,
                                               Axis::shard,  Axis::replicate, Axis::pipeline};
  std::vector<ParallelStrategy*> ordered;
  for (const auto& axis : order)
    for (const auto& strategy : strategies)
      if (strategy->axis() == axis) ordered.push_back(strategy.get());
  return ordered;
}

}  // namespace ditto
