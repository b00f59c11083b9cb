// From a recipe to a process that can run it: threads, plugins, options.
#pragma once

#include <chrono>

#include <ditto/parallel/strategy.h>

#include "core/components/strategies.h"
#include "core/config/recipe.h"
#include "core/mesh/gloo_mesh.h"
#include "core/plugin/registry.h"
#include "core/ranks/watch.h"

namespace ditto {

std::chrono::milliseconds timeout(const Recipe& recipe);
WatchOptions watch_options(const Recipe& recipe);
// Whether anything in the recipe says "bf16": run.precision, or an optimizer's own. A plugin's default counts once
// declare_components has read it.
bool asks_for_bf16(const Recipe& recipe);
// To be called before any tensor is made. Threads: [run] threads; or what OMP_NUM_THREADS says; or this rank's share of
// the machine's cores. And instructions that the processor announces but refuses are avoided.
void prepare_process(const Recipe& recipe, const RankInfo& rank);
// Every plugin that a recipe names, itself or by its degrees.
std::vector<PluginKey> plugins_of(Recipe& recipe);
// Reads every component's options by its plugin's declaration: errors now, and the defaults in recipe.resolved(). The
// plugins are opened; nothing is made.
void declare_components(Recipe& recipe, Registry& registry);
// After declare_components: whether all parts of a training run are there and go together, as far as that can be known
// without data. Throws Error(config) or Error(plugin).
void check_recipe(const Recipe& recipe, Registry& registry);

}  // namespace ditto
