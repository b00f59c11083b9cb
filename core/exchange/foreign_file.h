// Named tensors in a file of another project's, whatever its kind; or in several files with an index.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "core/formats/tensor/dtype.h"

namespace ditto::checkpoint {

class ForeignFile {
 public:
  virtual ~ForeignFile() = default;
  virtual std::vector<std::string> names() const = 0;  // of a .pt in its order
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  virtual formats::Dtype dtype(const std::string& name) const = 0;
  virtual torch::Tensor read(const std::string& name) const = 0;  // own memory, on the CPU
  // `count` of its numbers from the `first` on, in row-major order: [count], on the CPU.
  virtual torch::Tensor read(const std::string& name, int64_t first, int64_t count) const = 0;
  virtual std::map<std::string, std::string> notes() const { return {}; }  // a safetensors file's metadata
  virtual std::optional<double> number(const std::string&) const { return std::nullopt; }  // a plain one of a .pt
  virtual std::vector<std::string> files() const = 0;                                      // paths of all that is read
};

inline constexpr uint64_t kMostIndexBytes = uint64_t{32} << 20;
bool is_weights_index(const std::string& file);  // by its name, a variant's too: ….index.fp16.json

// Decides by the file's first bytes, not by its name: a zip is a .pt (or .bin). One whose name is an index's
// (is_weights_index) says which files beside it hold which tensors. Throws Error(checkpoint).
std::unique_ptr<ForeignFile> open_foreign(const std::string& path);

// Of every byte of its files: equal ones hold the same numbers.
std::string fingerprint(const ForeignFile& file);

}  // namespace ditto::checkpoint
