// How fast a recipe's checkpoints are saved, verified and loaded, beside plain files of as many bytes on the same disk:
// `ditto bench checkpoint`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/parallel/mesh.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

struct CheckpointBenchOptions {
  std::string folder = ".";  // in which a folder is made, and removed afterwards
  int64_t rounds = 5;        // after one that is not timed
};

struct CheckpointBench {
  int64_t parameters = 0;
  int64_t bytes = 0;  // of all files of a checkpoint
  // Seconds, once a round. What is read was dropped from memory before, as far as the system lets go of it.
  std::vector<double> write;   // a file of as many bytes, synced
  std::vector<double> stall;   // what a training step waits for its save
  std::vector<double> save;    // until it is durable, the stall too
  std::vector<double> read;    // the file
  std::vector<double> verify;  // every byte of the checkpoint, against its checksums
  std::vector<double> load;    // weights, average and the optimizer's states, checked
};

// One rank, on a processor. Throws what saving and loading throw, and Error(config) for a folder that takes no files.
CheckpointBench bench_checkpoint(Recipe recipe, Registry& registry, const Mesh& mesh,
                                 const CheckpointBenchOptions& options);

}  // namespace ditto
