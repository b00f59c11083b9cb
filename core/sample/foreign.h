// A model as another project's file holds it: what it is made from, read from the file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/recipe.h"
#include "core/network/shapes.h"
#include "core/plugin/registry.h"

namespace ditto {

// What a file that Ditto exports says of itself, for open_foreign and for people.
std::map<std::string, std::string> export_notes(const Recipe& recipe, const SavedShapes& shapes,
                                                const std::string& format);

struct ForeignModel {
  Recipe recipe;  // its [model] has the file's options
  SavedShapes shapes;
};
// `recipe`: a file, or empty where the weights say enough; options that it leaves open are those of the weights. A file
// that Ditto exported says all of itself, any other what the model's plugin reads out of it. Throws Error(config) where
// recipe, format and file disagree, naming both, or where nothing says which model it is; Error(checkpoint).
ForeignModel open_foreign(const std::string& path, const std::string& format, std::optional<checkpoint::Which> which,
                          const std::string& recipe, const std::vector<std::string>& sets, Registry& registry);

}  // namespace ditto
