// A recipe of a YAML file that NeMo's Imagen is trained by: `ditto init --from`.
#pragma once

#include <string>
#include <vector>

#include "core/plugin/registry.h"

namespace ditto {

struct NemoRecipe {
  std::string text;                // TOML
  std::vector<std::string> notes;  // fields that need none of its options, each with the reason
};
// `yaml`: the text of `file`. Every field is a part of the recipe, stands in the notes, or is refused: throws
// Error(config) "FILE:LINE" for one that nobody knows, for values that mean what cannot be done here, and for files of
// NeMo's that train nothing. Options that plugins of `registry` refuse are of their fields.
NemoRecipe recipe_of_nemo(const std::string& yaml, const std::string& file, Registry& registry);

}  // namespace ditto
