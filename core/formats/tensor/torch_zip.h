// PyTorch's .pt and .pth files (the zip form of torch.save), read without executing anything: the pickle inside is
// interpreted by a machine that knows tensors, storages, plain containers and plain values, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/tensor/torch_tensor.h"

namespace ditto::formats {

class TorchCheckpoint {
 public:
  // Throws Error(checkpoint), naming the file and the place in it: no zip, no data.pkl, an opcode or persistent id that
  // torch.save does not write, a tensor that reaches outside its storage, big-endian data, limits (64 dims, depth 100).
  static TorchCheckpoint open(const std::string& path);
  // The same of bytes in memory that outlive it; `where` names them.
  static TorchCheckpoint parse(std::span<const std::byte> bytes, std::string_view where);
  TorchCheckpoint(TorchCheckpoint&&) noexcept;
  TorchCheckpoint& operator=(TorchCheckpoint&&) noexcept;
  ~TorchCheckpoint();

  const std::vector<TorchTensor>& tensors() const;            // in the file's order
  const std::map<std::string, TorchScalar>& scalars() const;  // by dotted place; not those of lists
  const std::vector<TorchOpaque>& opaque() const;
  const TorchTensor* find(std::string_view name) const;  // null: not there
  // As find, but Error(checkpoint) saying what is there instead: an opaque class, a scalar, or the nearest name.
  const TorchTensor& at(std::string_view name) const;

  // The elements in row-major order, contiguous, little endian.
  std::vector<std::byte> read(const TorchTensor& tensor) const;

 private:
  struct State;
  explicit TorchCheckpoint(std::unique_ptr<State> state);
  static TorchCheckpoint read_from(State opened, std::uint64_t file_bytes);
  std::unique_ptr<State> state_;
};

}  // namespace ditto::formats
