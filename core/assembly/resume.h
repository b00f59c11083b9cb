// What a run goes on from, and whether it may with the recipe it is given now.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

// By `resume`: auto (the newest whole one of `checkpoints`, a run's folder of them), never, or a checkpoint or run.
// Called by every member of `ranks`; `say` hears of those that are passed over. Throws Error(checkpoint) where there
// are some, and none that can be used.
std::optional<std::string> find_start(const std::string& resume, const std::string& checkpoints, const Group& ranks,
                                      const std::function<void(const std::string&)>& say);

// What the options of both recipes change: those that only the saved one has are its strategies', where these are still
// there.
OptionEffects effects_of(const Recipe& now, const std::string& saved_toml, Registry& registry);

// The words of `allowed` that are no option or section of either recipe, nor a set of kernels.
std::vector<std::string> unknown_words(const std::vector<std::string>& allowed, const formats::Table& saved,
                                       const formats::Table& now, const OptionEffects& effects);
// Compares the recipe of a checkpoint with today's. Returns a line for each difference. Throws Error(config) if one
// changes what is learned and its key (or its section) is not among `allowed`.
std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const OptionEffects& effects, const std::vector<std::string>& allowed);

// Holds the classes' names that a checkpoint's notes have against those of today's data, of as many classes. Returns a
// line for what is only called otherwise. Throws Error(config) where a name stands at two numbers, so that what was
// learned of cats would be called dogs, unless "data" or "data.names" is among `allowed`.
std::vector<std::string> compare_class_names(const std::map<std::string, std::string>& notes, const std::string& path,
                                             const TensorSpecs& now, const std::vector<std::string>& allowed);

// Throws Error(config) where a checkpoint is of a later step than the run's last one.
void require_not_past(int64_t steps, int64_t step, const std::string& path);

}  // namespace ditto
