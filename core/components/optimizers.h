// The optimizer of a run: one, or one for [optimizer] and one for each of its groups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ditto/optimizer.h>

#include "core/components/components.h"
#include "core/config/optimizer_group.h"

namespace ditto {

// Throws Error(config) for a pattern that takes none of a run's parameters, with the nearest one that would.
void refuse_idle(const std::vector<OptimizerGroup>& groups, const std::vector<std::string>& names);

// The recipe's, of all these parameters. With groups: every parameter is of the first one that matches its name, or of
// [optimizer] itself; all of them update together, states are called as without groups, and a group's counters begin
// with "group.0.".
std::shared_ptr<Optimizer> make_optimizer(Components& components, const Optimizer::Needs& needs);

}  // namespace ditto
