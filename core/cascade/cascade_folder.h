// The folder of a cascade that is trained: what it goes on with where the recipes that it began with have gone.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/cascade/cascade.h"
#include "core/formats/text/toml.h"

namespace ditto {

// Writes OUTPUT/cascade.toml and beside it each stage's recipe, with every default: `recipes`, in the stages' places.
// Of `one` stage alone, which other processes may train the others of at the same time: of those only what is not there
// yet. Each file is there at once. Throws Error(config) where the folder cannot be made, or holds another cascade's
// stages; Error(data).
void write_cascade_folder(const Cascade& cascade, const std::vector<formats::Table>& recipes,
                          std::optional<std::size_t> one);

}  // namespace ditto
