// An open checkpoint: its small files read, its tensors' files mapped and checked when they are first needed.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"
#include "core/formats/safetensors.h"

namespace ditto::checkpoint {

class Reader {
 public:
  // Throws Error(checkpoint) naming the file: no manifest, a small file that is missing or changed.
  explicit Reader(std::string folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Index& index() const { return index_; }
  const SavedState& state() const { return state_; }
  const std::string& recipe() const { return recipe_; }

  // Size and checksum of one file against the manifest; read once. Throws Error(checkpoint) naming the file.
  void check_file(const std::string& name);

  // The parts of `box` that the checkpoint holds; together exactly `box`, or Error(checkpoint) naming the tensor.
  struct Part {
    const Piece* piece;
    Box box;  // of the global tensor
  };
  std::vector<Part> cover(const std::string& name, const IndexedTensor& tensor, const Box& box) const;
  // The numbers of `part`, over the mapping: valid as long as the reader. The file is checked first.
  torch::Tensor view(const IndexedTensor& tensor, const Part& part);

 private:
  std::string path(const std::string& name) const;
  std::shared_ptr<const formats::MappedFile> checked(const std::string& name);
  std::string text(const std::string& name);
  const formats::SafetensorsReader& shard(const std::string& name);
  std::string folder_;
  Manifest manifest_;
  Index index_;
  SavedState state_;
  std::string recipe_;
  std::map<std::string, formats::SafetensorsReader> shards_;
  std::set<std::string> checked_;
};

}  // namespace ditto::checkpoint
