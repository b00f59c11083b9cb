// From the values of a torch.save pickle to a flat list of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/tensor/pickle.h"
#include "core/formats/tensor/torch_tensor.h"

namespace ditto::formats {

struct TorchStorage {
  std::uint64_t bytes = 0;
  std::string_view inside;  // its bytes, of a tensor that was pickled by itself: they are part of the pickle
};

struct TorchTree {
  std::vector<TorchTensor> tensors;
  std::map<std::string, TorchScalar> scalars;
  std::vector<TorchOpaque> opaque;
  std::map<std::string, TorchStorage> storages;  // those that tensors use, by key
};

// Throws Error(checkpoint) naming the place for tensors that do not fit their storage or are of an unknown kind.
TorchTree flatten_torch(pickle::Ref root, std::string_view where);

// The tensor's elements of its storage's bytes: in row-major order, contiguous. Throws Error(checkpoint) for a tensor
// that repeats a smaller storage to over 64 MiB.
std::vector<std::byte> elements_of(const TorchTensor& tensor, std::vector<std::byte> storage, std::string_view where);

// What torch.save wrote before it wrote zip archives, of one storage alone: so tensors are pickled that are saved by
// pickle itself. Throws Error(checkpoint).
struct OldStorage {
  std::optional<Dtype> dtype;  // none: counted in bytes
  std::int64_t count = 0;
  std::string_view bytes;
};
OldStorage read_old_storage(std::string_view file, std::string_view where);

}  // namespace ditto::formats
