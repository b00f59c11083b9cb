// Trying an author's model, or encoder, on layouts of ranks.
#pragma once

#include <string>
#include <vector>

namespace ditto {

struct TryArguments {
  std::string file, recipe;  // no recipe: small defaults
  std::vector<std::string> sets, plugin_path;
};
// Prints how it fared. Throws Error(plugin) where it is wrong.
void try_plugin(const TryArguments& arguments);

}  // namespace ditto
