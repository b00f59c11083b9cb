// The JSON header of a safetensors file, as text and as what it says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/error.h>

#include "core/formats/tensor/dtype.h"

namespace ditto::formats {

struct HeaderTensor {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // counted from the end of the header
  std::uint64_t end;
};

struct Header {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Checks the JSON and every tensor by itself (not how they lie in the file). Throws Error(kind) naming the tensor.
Header parse_safetensors_header(std::string_view text, std::string_view where, ErrorKind kind);

// Bytes of a tensor. Throws Error(kind) on overflow, a negative size, over 64 dims, or bits that fill no whole byte.
std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape, std::string_view where, ErrorKind kind);

}  // namespace ditto::formats
