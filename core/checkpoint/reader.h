// An open checkpoint: its small files read; its tensors' files are read chunk by chunk as far as they are needed, each
// chunk checked before it is used.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"
#include "core/formats/tensor/safetensors.h"

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

  // The size of one file, and the checksums of its chunks `first`, `first` + `stride`, … against the manifest; what was
  // right once is not read again. Throws Error(checkpoint) naming the file.
  void check_file(const std::string& name, size_t first = 0, size_t stride = 1);

  // The parts of `box` that the checkpoint holds; together exactly `box`, or Error(checkpoint) naming the tensor.
  struct Part {
    const Piece* piece;
    Box box;  // of the global tensor
  };
  std::vector<Part> cover(const std::string& name, const IndexedTensor& tensor, const Box& box) const;
  // What the piece's file says of it, or Error(checkpoint) if the index says another thing. Checks the file's header.
  const formats::SafetensorsEntry& entry(const IndexedTensor& tensor, const Piece& piece);
  // Whether the numbers of `part` can be read: checks the chunks that they lie in.
  void check(const IndexedTensor& tensor, const Part& part);
  // The numbers of `part`, on the CPU, out of chunks that were checked as they were read.
  torch::Tensor read(const IndexedTensor& tensor, const Part& part);
  // A line for each file that is not as it was when its reading began: what was right then may be so no more.
  std::vector<std::string> changed() const;

 private:
  struct File {
    const FileRecord* record;
    std::vector<bool> checked;                               // its chunks
    std::shared_ptr<const formats::RandomFile> opened = {};  // null: not now
    std::optional<formats::SafetensorsReader> tensors = {};
    std::optional<FileMark> mark = {};  // from before it was opened first
  };

  std::string path(const std::string& name) const;
  File& file(const std::string& name);
  const formats::RandomFile& opened(File& file);
  // The bytes of a chunk, which are right; until the next call.
  std::span<const std::byte> chunk(File& file, size_t number);
  void check_chunks(File& file, uint64_t begin, uint64_t end);
  void copy(File& file, uint64_t begin, std::span<std::byte> into);
  std::string text(File& file, uint64_t bytes);  // its beginning
  // Calls use(file, begin, end) for each run of bytes that `part` consists of, in the order of its numbers.
  void for_each_run(const IndexedTensor& tensor, const Part& part,
                    const std::function<void(File&, uint64_t, uint64_t)>& use);
  const formats::SafetensorsReader& tensors(File& file);
  [[noreturn]] void refuse_cover(const std::string& name, const Box& box, const std::vector<Part>& parts,
                                 int64_t held) const;
  std::string folder_;
  FileMark manifest_mark_;
  Manifest manifest_;
  Index index_;
  SavedState state_;
  std::string recipe_;
  std::map<std::string, File> files_;
  size_t open_files_ = 0;
  const File* chunk_of_ = nullptr;  // the file and the number of the chunk in memory; null: none
  size_t chunk_number_ = 0;
  std::vector<std::byte> chunk_;
};

}  // namespace ditto::checkpoint
