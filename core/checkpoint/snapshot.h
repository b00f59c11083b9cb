// One rank's part of a save: copied while training waits, written while it does not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"

namespace ditto::checkpoint {

// Host memory that is used again by every save: fresh pages cost more than the copy.
class HostBuffers {
 public:
  torch::Tensor copy(const std::string& key, const torch::Tensor& source);  // contiguous, on the CPU

 private:
  std::map<std::string, torch::Tensor> buffers_;
};

struct Snapshot {
  struct Part {
    std::string name;    // in its file
    torch::Tensor data;  // contiguous, on the CPU
  };
  std::map<std::string, std::vector<Part>> files;  // by file name
  Index index;                                     // of those
  SavedState state;
  std::string recipe;
};

// Of a set of equal copies one rank takes part: the one whose place is 0 along every axis of the copies. Null mesh: one
// rank.
Snapshot take_snapshot(const TrainState& state, const Mesh* mesh, HostBuffers& buffers);

// Writes this rank's files into `folder` and syncs them. The checksums are of what was meant to be written.
std::vector<FileRecord> write_shards(const std::string& folder, const Snapshot& snapshot);
// Then one rank, with all ranks' files and the merged index: the small files, the manifest last; all synced.
void write_manifest(const std::string& folder, std::vector<FileRecord> files, const Index& index,
                    const Snapshot& snapshot);

}  // namespace ditto::checkpoint
