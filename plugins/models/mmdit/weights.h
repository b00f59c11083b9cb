// Weights of an mmdit as others keep them: in diffusers (SD3Transformer2DModel, FluxTransformer2DModel; "diffusers"),
// and in one file as Stability AI and Black Forest Labs gave them out and ComfyUI loads them ("comfy").
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>

#include "options.h"

namespace mmdit {

// Those of the published family that this model is of; none where it is of neither.
std::vector<std::string> formats(const MmDitOptions& options, const ditto::ModelNeeds& needs);
// Throws Error(config) for a model that is of neither.
ditto::ForeignFormat names(const ditto::Model& model, const MmDitOptions& options, const ditto::ModelNeeds& needs,
                           const std::string& format);
// Sets the options that a file of theirs says, reads the recipe over them, and says what the model needs.
ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file);

}  // namespace mmdit
