// run.memory_format: how the maps of a UNet lie. Convolutions and norms have other kernels for maps with channels first
// than with channels last, and which are faster depends on the machine, precision and libraries: where a recipe leaves
// it open it is measured once, and a run keeps what it began with.
#pragma once

#include <string>

#include "core/network/running_model.h"

namespace ditto {

// Before anything of the run is cut. Throws Error(config) where the recipe says how maps lie, and the model has none.
void check_memory_format(const Recipe& recipe, const RunningModel& main);
// For a recipe that leaves it open, with a model that has maps: takes what rank 0 has in its cache, or measures. Called
// by all of `world`. Maps lie as they come where nothing is to be faster: under run.numerics = "one", and in fp64.
void measure_memory_format(Recipe& recipe, Registry& registry, const RunningModel& main, const Group& world);
// A recipe that left it open takes that of the run that it goes on with, where that has noted one.
void keep_memory_format(Recipe& recipe, const std::string& saved_toml);

}  // namespace ditto
