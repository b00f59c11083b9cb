// From the values of a torch.save pickle to a flat list of tensors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/pickle.h"
#include "core/formats/torch_zip.h"

namespace ditto::formats {

struct TorchStorage {
  std::uint64_t bytes = 0;
};

struct TorchTree {
  std::vector<TorchTensor> tensors;
  std::map<std::string, TorchScalar> scalars;
  std::vector<TorchOpaque> opaque;
  std::map<std::string, TorchStorage> storages;  // those that tensors use, by key
};

// Throws Error(checkpoint) naming the place for tensors that do not fit their storage or are of an unknown kind.
TorchTree flatten_torch(pickle::Ref root, std::string_view where);

}  // namespace ditto::formats
