// Tensors in and out of safetensors files.
#pragma once

#include <map>
#include <span>
#include <string>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/formats/tensor/safetensors.h"

namespace ditto {

using NamedTensors = std::map<std::string, torch::Tensor>;

// Throws Error(kind) for an element type that the other side does not have, naming `where`.
formats::Dtype dtype_of(const torch::Tensor& tensor, const std::string& where, ErrorKind kind = ErrorKind::checkpoint);
at::ScalarType scalar_type_of(formats::Dtype dtype, const std::string& where, ErrorKind kind = ErrorKind::checkpoint);

// A contiguous CPU tensor's memory.
std::span<const std::byte> bytes_of(const torch::Tensor& tensor);
std::span<std::byte> writable_bytes_of(torch::Tensor& tensor);
// The entry's numbers, on the CPU.
torch::Tensor read_tensor(const formats::SafetensorsReader& file, const formats::SafetensorsEntry& entry,
                          ErrorKind kind = ErrorKind::checkpoint);

// A whole file. Throws Error(kind) naming the file and what is wrong with it.
NamedTensors read_tensors(const std::string& path, ErrorKind kind = ErrorKind::data);
// Written beside `path` and renamed: the old file or the new one. Any device, any strides.
void write_tensors(const std::string& path, const NamedTensors& tensors, const formats::Metadata& metadata = {},
                   ErrorKind kind = ErrorKind::data, formats::Sync sync = formats::Sync::none);

}  // namespace ditto
