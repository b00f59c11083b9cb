// Whether a run may go on from a checkpoint with the recipe it is given now.
#pragma once

#include <string>
#include <vector>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// What the options of both recipes change: those that only the saved one has are its strategies', where these are still
// there.
OptionEffects effects_of(const Recipe& now, const std::string& saved_toml, Registry& registry);

// Compares the recipe of a checkpoint with today's. Returns a line for each difference. Throws Error(config) if one
// changes what is learned and its key (or its section) is not among `allowed`.
std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const OptionEffects& effects, const std::vector<std::string>& allowed);

}  // namespace ditto
