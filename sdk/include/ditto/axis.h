// The axes of the grid that a run's ranks form.
#pragma once

#include <array>

#include <ditto/visibility.h>

namespace ditto {

// Slowest first: ranks that differ along `tensor` alone are neighbours. "axis" is the mesh's, "dim" a tensor's.
enum class Axis { pipeline, replicate, shard, context, expert, tensor };
inline constexpr std::array<Axis, 6> kAxes{Axis::pipeline, Axis::replicate, Axis::shard,
                                           Axis::context,  Axis::expert,    Axis::tensor};
DITTO_API const char* name(Axis axis);

}  // namespace ditto
