// Named tensors in a file of another project's, whatever its kind.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

namespace ditto::checkpoint {

class ForeignFile {
 public:
  virtual ~ForeignFile() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  virtual torch::Tensor read(const std::string& name) const = 0;           // own memory, on the CPU
  virtual std::map<std::string, std::string> notes() const { return {}; }  // a safetensors file's metadata
};

// Decides by the file's first bytes, not by its name: a zip is a .pt. Throws Error(checkpoint).
std::unique_ptr<ForeignFile> open_foreign(const std::string& path);

}  // namespace ditto::checkpoint
