// Weights in another project's file, out and in: `ditto checkpoint export` and `import`, frozen networks and encoders.
//
// The plugin itself says how its parameters are called there (Units::foreign). Files are safetensors, several of them
// with an index, or PyTorch's .pt, of which nothing is executed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/model.h>

#include "core/checkpoint/checkpoint.h"

namespace ditto::checkpoint {

// Writes the model's parameters in `format`: names, shapes, copies and constants as there. `out` is a safetensors file,
// or else a folder that diffusers' from_pretrained reads; the model's configuration and the `scheduler`'s lie beside
// the weights. Load the checkpoint into the model first (load_weights). `notes` go into the file's metadata. Throws
// Error(config) for a format the model does not know or that has no folders, and before it would replace another
// model's configuration; Error(plugin) if the model's map is not one of its parameters.
void export_weights(Model& model, const std::string& format, const std::string& out,
                    const std::map<std::string, std::string>& notes = {}, const ForeignConfig& scheduler = {});

// What such a file, or folder, says before a model is made for it.
struct ForeignWeights {
  ForeignShapes shapes;
  std::map<std::string, std::string> notes;  // the file's metadata
};
ForeignWeights look_at_weights(const std::string& path, const std::string& format,
                               std::optional<Which> which = std::nullopt);

// Fills what is here of the layout, which lists all parameters of `of`, from it: each rank reads the rectangles that it
// holds (of a .pt whole tensors, one after another). Values are converted to the layout's dtype. No format: the file
// has the parameters' own names. A .pt may hold several sets of weights ({model, ema, …}): `which` picks one; none: EMA
// where there is one. Returns the set that was read: "ema", "model", or "" for a file of one set. Nothing is changed
// unless all fits. Throws Error(checkpoint) naming the file and the tensors: missing, without a place here, another
// shape, copies that differ, constants that are not this plugin's; `section` of the recipe is what does not go with it.
std::string import_weights(const Units& of, const std::string& format, const std::string& path, Layout& layout,
                           std::optional<Which> which = std::nullopt, const std::string& section = "model");
// The same of all of it.
std::string import_weights(Units& of, const std::string& format, const std::string& path,
                           std::optional<Which> which = std::nullopt);

// Of every byte of such a file, or of a folder's files.
std::string fingerprint_of_weights(const std::string& path);

}  // namespace ditto::checkpoint
