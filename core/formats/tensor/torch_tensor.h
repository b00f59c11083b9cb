// What a file of torch.save holds: tensors, plain values, and what is kept as a name alone.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/formats/tensor/dtype.h"

namespace ditto::formats {

struct TorchTensor {
  std::string name;  // keys from the root, joined by dots: "ema.blocks.0.attn.qkv.weight"
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements
  std::int64_t storage_offset = 0;    // in elements
  std::string storage;                // the storage's key; tensors may share one
};

// A value of a class that is not among those known (argparse.Namespace, an optimizer's own types, …): kept as a name.
struct TorchOpaque {
  std::string name;        // its place, as in TorchTensor
  std::string class_name;  // "argparse.Namespace"
};

using TorchScalar = std::variant<bool, std::int64_t, double, std::string>;

}  // namespace ditto::formats
