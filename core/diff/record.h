// A run's first steps, made to be looked at.
#pragma once

#include <functional>
#include <string>

#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/diff/events.h"
#include "core/plugin/registry.h"
#include "core/process/same_start.h"
#include "core/ranks/watch.h"

namespace ditto::diff {

struct RecordCall {
  std::string folder;  // where every rank leaves its events
  int64_t steps = 2;
  RankWatch* watch = nullptr;  // is told of every step
  // Throws Error(kind) unless all ranks have the same.
  std::function<void(const std::string& topic, const Facts&, ErrorKind kind)> expect_same;
};

// Trains from the start, as `ditto train` would, without a run's folder, validation or checkpoints, and looked at by a
// Probe. Called by all ranks of the mesh. Throws what training throws.
void record(Recipe recipe, Registry& registry, const Mesh& mesh, const RecordCall& call);

// What all ranks have left in the folder. Throws Error(data).
Events recorded(const std::string& folder);

}  // namespace ditto::diff
