// Recipes that include others, and the command line's --set.
#pragma once

#include <string>
#include <vector>

#include "core/formats/text/toml.h"

namespace ditto {

// Of a run's folder, the name of the recipe that it keeps.
inline constexpr const char* kRunRecipe = "run.toml";
// Of the folder of a cascade (core/cascade), the name of the file that names its stages.
inline constexpr const char* kCascadeFile = "cascade.toml";

// What to name in the place of such a folder, where one run is wanted: "name a stage's: runs/faces/base, …". Empty: it
// is none.
std::string remedy_of_cascade(const std::string& folder);

// The file that is meant: of a run's folder its run.toml. Throws Error(config) for what is no recipe.
std::string recipe_file(const std::string& given);

// The file with what its top-level `include` (a string, or a list of strings, relative to the file) brings: later files
// win over earlier ones, the file itself over all. Throws Error(config) for a file that is missing or includes itself,
// and for more than 64 files or 100,000 values in all.
formats::Table read_with_includes(const std::string& path);

// "a.b=c" each. `known`: every option of the host, for what to do about one whose section is left out. Throws
// Error(config).
using KeysOfHost = std::vector<std::string> (*)();
void apply_sets(formats::Table& tree, const std::vector<std::string>& sets, KeysOfHost known);

// What the host itself reads of a section that names a plugin.
std::vector<std::string> own_keys(const std::string& section);

}  // namespace ditto
