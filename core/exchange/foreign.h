// Weights in another project's file, out and in: `ditto checkpoint export` and `import`, frozen networks and encoders.
//
// The plugin itself says how its parameters are called there (Units::foreign). Files are safetensors, several of them
// with an index, or PyTorch's .pt and .bin, of which nothing is executed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/model.h>

#include "core/checkpoint/checkpoint.h"

namespace ditto::checkpoint {

// Names of classes in other projects, as their config.json says them: "AutoencoderKL".
using Classes = std::vector<std::string>;

// How an export is written.
struct ExportForm {
  std::optional<at::ScalarType> dtype;  // that numbers are rounded to; none: as they are
  uint64_t most_bytes = 0;              // of a file; 0: one file of any size
  std::string kept_config;              // the text of the config.json that the model was imported with, if it was
};
// Writes the model's parameters in `format`: names, shapes, copies and constants as there. `out` is a safetensors file,
// or else a folder that diffusers' from_pretrained reads; the model's configuration and the `scheduler`'s lie beside
// the weights. Load the checkpoint into the model first (load_weights). `notes` go into the file's metadata. Returns
// the file that a card of the model belongs into. Throws Error(config) for a format the model does not know or that has
// no folders, and before it would replace another model's configuration; Error(plugin) if the model's map is not one of
// its parameters.
std::string export_weights(Model& model, const std::string& format, const std::string& out,
                           const std::map<std::string, std::string>& notes = {}, const ForeignConfig& scheduler = {},
                           const ExportForm& form = {});

// What such a file, or folder, says before a model is made for it.
struct ForeignWeights {
  ForeignShapes shapes;
  std::map<std::string, std::string> notes;  // the file's metadata
  std::string config_text;                   // all of config.json
  std::map<std::string, int64_t> others;     // tensors that are no part of the model, by what they are of
  std::string reading;                       // of a folder: which of its files is read, and which not; for people
};
// `classes`: as find_foreign_weights takes them. Of a file with a denoiser and its autoencoder "AutoencoderKL" is the
// latter.
ForeignWeights look_at_weights(const std::string& path, const std::string& format,
                               std::optional<Which> which = std::nullopt, const Classes& classes = {});

// Fills what is here of the layout, which lists all parameters of `of`, from it: each rank reads the rectangles that it
// holds (of a .pt whole tensors, one after another). Values of F64, F32, F16 and BF16 are converted to the layout's
// dtype. No format: the file has the parameters' own names. A .pt may hold several sets of weights ({model, ema, …}):
// `which` picks one; none: EMA where there is one. Returns the set that was read: "ema", "model", or "" for a file of
// one set. Nothing is changed unless all fits. Throws Error(checkpoint) naming the file and the tensors: missing,
// without a place here, another shape or type (a square weight that is transposed cannot be told), copies that differ,
// constants that are not this plugin's; `section` of the recipe is what does not go with it.
std::string import_weights(const Units& of, const std::string& format, const std::string& path, Layout& layout,
                           std::optional<Which> which = std::nullopt, const std::string& section = "model");
// The same of all of it.
std::string import_weights(Units& of, const std::string& format, const std::string& path,
                           std::optional<Which> which = std::nullopt);

// Fills a training's state from a .pt that holds {model, ema, opt}: weights, average where the state has one, and the
// moments of torch's Adam or AdamW, whose parameters are numbered as the tensors of `model` stand there. Sets the step
// and the optimizer's counters. Throws as import_weights, and for an optimizer's state that is another's.
void import_training(const Units& of, const std::string& format, const std::string& path, TrainState& state);

// Of every byte of such a file, or of a folder's files.
std::string fingerprint_of_weights(const std::string& path);

}  // namespace ditto::checkpoint
