// A model as a checkpoint holds it, ready to run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/data/shapes.h"
#include "core/network/adapter.h"
#include "core/network/running_model.h"

namespace ditto {

// What is done with a model that has learned: which options say something then, and whether data is read.
enum class SavedUse { sampling, evaluation };
// Why an option ("run.steps", or KEY=VALUE) says nothing of a model that has learned, in this use; null: it does.
const char* why_idle(std::string_view option, SavedUse use);

// The recipe a checkpoint was made with, for another use: its layout of ranks is forgotten (`sets` may give one), and
// so are the folders that the training run wrote and, where no data is read, those that it read.
struct SavedModel {
  Recipe recipe;
  SavedShapes shapes;
  std::string prefix;       // of its weights' names: "", or "network.NAME."
  std::string path;         // of the checkpoint
  std::string fingerprint;  // of its content
  int64_t step = 0, samples = 0;
  bool has_ema = false;
  bool began_with_others = false;            // its training started from weights of another
  std::map<std::string, std::string> notes;  // the run's, beside its tensors
  std::optional<AdapterBase> base;           // of an adapter, which `path` then holds alone: where all else lies
};
// `path`: a run, its checkpoints folder, or a checkpoint. `network`: the one of [network.NAME] that trained with the
// run's model, in its place. `sets` may give a run that is no adapter's one (adapter.weights), and say where an
// adapter's base lies (run.init_from). For an evaluation the recipe validates. Throws Error(checkpoint) or
// Error(config).
SavedModel open_saved(const std::string& path, const std::vector<std::string>& sets, const std::string& network = "",
                      SavedUse use = SavedUse::sampling);
// The model runs with its weights from now on: "ema" (where there is one) or "weights". `of`: whose they are there, ""
// the run's model's, "network.NAME." another's that learned with it. Throws as open_saved.
void load_weights(const SavedModel& saved, const std::string& which, RunningModel& model, const std::string& of = "");

// Of these weights, where "ema" or "weights" of them were taken.
std::string fingerprint_of(const SavedModel& saved, const std::string& which);

// Of something else that has all its parameters there by their names, an encoder.
void load_weights(const SavedModel& saved, const std::string& which, RunningUnits& units);

}  // namespace ditto
