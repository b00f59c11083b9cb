// An open checkpoint: its small files read, its tensors' files mapped, and each chunk of them checked when it is first
// needed.
#pragma once

#include <map>
#include <memory>
#include <optional>
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

  // The size of one file, and the checksums of its chunks `first`, `first` + `stride`, … against the manifest; a chunk
  // is read once. Throws Error(checkpoint) naming the file.
  void check_file(const std::string& name, size_t first = 0, size_t stride = 1);

  // The parts of `box` that the checkpoint holds; together exactly `box`, or Error(checkpoint) naming the tensor.
  struct Part {
    const Piece* piece;
    Box box;  // of the global tensor
  };
  std::vector<Part> cover(const std::string& name, const IndexedTensor& tensor, const Box& box) const;
  // What the piece's file says of it, or Error(checkpoint) if the index says another thing. Checks the file's header.
  const formats::SafetensorsEntry& entry(const IndexedTensor& tensor, const Piece& piece);
  // The numbers of `part`, over the mapping: valid as long as the reader. The chunks they lie in are checked first.
  torch::Tensor view(const IndexedTensor& tensor, const Part& part);

 private:
  struct File {
    const FileRecord* record;
    std::shared_ptr<const formats::MappedFile> mapped;
    std::vector<bool> checked;  // its chunks
    std::optional<formats::SafetensorsReader> tensors;
  };

  std::string path(const std::string& name) const;
  File& file(const std::string& name);
  void check_chunk(File& file, size_t number);
  void check(File& file, uint64_t begin, uint64_t end);  // the chunks of these bytes
  std::string text(const std::string& name);
  const formats::SafetensorsReader& tensors(File& file);
  std::string folder_;
  Manifest manifest_;
  Index index_;
  SavedState state_;
  std::string recipe_;
  std::map<std::string, File> files_;
};

}  // namespace ditto::checkpoint
