// Which strategies cut a network, by the degrees of [parallel].
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/parallel/strategy.h>

#include "core/components/components.h"
#include "core/mesh/gloo_mesh.h"

namespace ditto {

Degrees degrees(const Recipe& recipe);
// The place of the option that names this strategy; the recipe's where none is given.
std::string place_of_strategy(const Recipe& recipe, const std::string& id);
// What [parallel] gives of the options that a strategy declares.
OptionMap strategy_options(const Recipe& recipe, const Factory<ParallelStrategy>& factory);
// The strategies of a recipe, as far as its degrees name them, in the order of sharding; where replicate is left open,
// its strategy too, which one rank then has no use for.
std::vector<std::string> strategy_ids(const Recipe& recipe);
// Throws Error(config) for an option of [parallel] that no strategy of this recipe reads.
void refuse_unread_options(const Recipe& recipe, Registry& registry);

// Throws Error(config) where an axis has several ranks and no plugin. `degrees`: of all axes.
void refuse_unserved(const Recipe& recipe, const Degrees& degrees);

// Those that serve these axes of the mesh, in the order of sharding; and of a network that trains those that serve
// none. Throws Error(config) or Error(plugin).
std::vector<std::shared_ptr<ParallelStrategy>> make_strategies(Components& components,
                                                               const ParallelStrategy::Needs& needs,
                                                               const AxisSet& axes, bool trains);

}  // namespace ditto
