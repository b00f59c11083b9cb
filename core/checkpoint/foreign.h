// A model's weights in another project's file, out and in: `ditto checkpoint export` and `import`.
//
// The model itself says how its parameters are called there (Model::foreign). Files are safetensors, or PyTorch's .pt,
// of which nothing is executed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ditto/model.h>

#include "core/checkpoint/checkpoint.h"

namespace ditto::checkpoint {

// Writes the model's parameters to `path` as one safetensors file in `format`: names, shapes, copies and constants as
// there. Load the checkpoint into the model first (load_weights). `notes` go into the file's metadata. Throws
// Error(config) for a format the model does not know, Error(plugin) if the model's map is not one of its parameters.
void export_weights(Model& model, const std::string& format, const std::string& path,
                    const std::map<std::string, std::string>& notes = {});

// Fills the model's parameters from such a file; values are converted to their dtype. A .pt may hold several sets of
// weights
// ({model, ema, …}): `which` picks one; none: EMA where there is one. Returns the set that was read: "ema", "model", or
// "" for a file of one set. Nothing is changed unless all fits. Throws Error(checkpoint) naming the file and the
// tensors: missing, without a place here, another shape, copies that differ, constants that are not this model's.
std::string import_weights(Model& model, const std::string& format, const std::string& path,
                           std::optional<Which> which = std::nullopt);

}  // namespace ditto::checkpoint
