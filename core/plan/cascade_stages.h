// The stages of a cascade put together on shapes alone, before any of them trains.
#pragma once

#include <string>
#include <vector>

#include "core/cascade/agreement.h"
#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// One stage's recipe, with what was set for it, and every default.
struct OpenedStage {
  Recipe recipe;
  StageTensors tensors;
};

// Each on one rank, without its data and weights, which need not be there. Throws Error(config) and what putting a
// recipe together throws, with the stage named, and for stages that do not agree (core/cascade/agreement.h).
std::vector<OpenedStage> open_stages(const Cascade& cascade, Registry& registry);

}  // namespace ditto
