// unet_sd in others' files: diffusers' UNet2DConditionModel with its config.json ("diffusers"), and a file of
// github.com/CompVis/latent-diffusion and those after it, where a whole pipeline may lie ("ldm").
#pragma once

#include <string>
#include <vector>

#include <ditto/exchange/foreign_names.h>

#include "options.h"

namespace unet_sd {

inline constexpr const char* kClass = "UNet2DConditionModel";

std::vector<std::string> formats(const Options& options);  // that a model of these options has
ditto::ForeignFormat names(const ditto::Units& model, const Options& options, const ditto::ModelNeeds& needs,
                           const std::string& format);
// What such a file is of: reads the recipe over its options. Throws Error(checkpoint) for a key of config.json that
// nobody knows, or that means another network, and for tensors that are no such UNet's; Error(config) where a recipe
// says otherwise, or has to say what the file does not.
ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file);

}  // namespace unet_sd
