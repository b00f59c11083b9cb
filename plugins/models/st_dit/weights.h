// Weights of an st_dit as others keep them: Latte's in diffusers (LatteTransformer3DModel, "diffusers") and STDiT3's in
// Open-Sora 1.2 ("open-sora").
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>

#include "options.h"

namespace st_dit {

// The format of the published model that this one is: one or none.
std::vector<std::string> formats(const StDitOptions& options, const ditto::ModelNeeds& needs);
// Throws Error(config) for a model that is not theirs.
ditto::ForeignFormat names(const ditto::Model& model, const StDitOptions& options, const ditto::ModelNeeds& needs,
                           const std::string& format);
// Sets the options that a file of theirs says, reads the recipe over them, and says what the model needs.
ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file);

}  // namespace st_dit
