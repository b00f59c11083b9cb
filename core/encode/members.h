// What is kept of an encoded sample, as members of a shard.
#pragma once

#include <string>

#include <ditto/batch.h>

#include "core/checkpoint/tensor_file.h"
#include "core/formats/tensor/safetensors.h"

namespace ditto {

// Of row `row` of a tensor on the host: without what pads a text (a spec of any length) to others of its batch.
torch::Tensor own_row(const Batch& batch, const TensorSpec& spec, int64_t row);

// The bytes of a safetensors file of contiguous tensors on the host, with this metadata and the crc32
// (encoded_set.h).
std::string safetensors_member(const NamedTensors& tensors, formats::Metadata metadata);

// The bytes of a torch.save file and of a pickled NumPy array, of fp32 or fp64.
std::string torch_member(const torch::Tensor& tensor);
std::string numpy_member(const torch::Tensor& tensor);

}  // namespace ditto
