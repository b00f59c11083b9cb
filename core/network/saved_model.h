// A model as a checkpoint holds it, ready to run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/network/running_model.h"
#include "core/network/shapes.h"

namespace ditto {

// The recipe a checkpoint was made with, for another use: its layout of ranks is forgotten (`sets` may give one), and
// so are the folders that the training run read and wrote.
struct SavedModel {
  Recipe recipe;
  SavedShapes shapes;
  std::string path;         // of the checkpoint
  std::string fingerprint;  // of its content
  int64_t step = 0;
  bool has_ema = false;
};
// `path`: a run, its checkpoints folder, or a checkpoint. Throws Error(checkpoint) or Error(config).
SavedModel open_saved(const std::string& path, const std::vector<std::string>& sets);
// The model runs with its weights from now on: "ema" (where there is one) or "weights". Throws as open_saved.
void load_weights(const SavedModel& saved, const std::string& which, RunningModel& model);

}  // namespace ditto
