// One rank's part of a save: copied while training waits, written while it does not.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"

namespace ditto::checkpoint {

// Host memory that is used again by every save: fresh pages cost more than the copy.
//
// What lies on a GPU is copied there first, and from there to pinned memory, in a stream of its own while the next step
// is computed: nobody waits for it but who reads. Where the GPU has no room for its copies, its own stream waits until
// the tensors themselves have been copied.
class HostBuffers {
 public:
  torch::Tensor copy(const std::string& key, const torch::Tensor& source);  // contiguous, on the CPU
  // Begins the copies of what lies on a GPU. The event of their end: until then the tensors hold nothing; null: there
  // are none.
  std::shared_ptr<c10::Event> download();

 private:
  struct Download {
    torch::Tensor to, from;
  };
  std::map<std::string, torch::Tensor> buffers_;
  std::vector<Download> asked_;
  std::optional<c10::Stream> stream_;
};

struct Snapshot {
  struct Part {
    std::string name;    // in its file
    torch::Tensor data;  // contiguous, on the CPU
  };
  std::map<std::string, std::vector<Part>> files;  // by file name
  std::shared_ptr<c10::Event> copied;              // when the parts are there; null: they are
  Index index;                                     // of those
  SavedState state;
  std::string recipe;
};

// Of a set of equal copies one rank takes part: the one whose place is 0 along every axis of the copies. Null mesh: one
// rank. Waits for no device.
Snapshot take_snapshot(const TrainState& state, const Mesh* mesh, HostBuffers& buffers);

// Once the copies are done: writes this rank's files into `folder` and syncs them. The checksums are of what was meant
// to be written.
std::vector<FileRecord> write_shards(const std::string& folder, const Snapshot& snapshot);
// Then one rank, with all ranks' files and the merged index: the small files, the manifest last; all synced.
void write_manifest(const std::string& folder, std::vector<FileRecord> files, const Index& index,
                    const Snapshot& snapshot);

}  // namespace ditto::checkpoint
