// From the host's memory to a device's, so that the host waits for neither.
#pragma once

#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// The same numbers on `device`, contiguous. Those in the host's memory go to a GPU in one copy, in its current stream,
// from pinned memory that LibTorch uses again once that is done, and lie there in one block. What is on the device
// already stays as it is, as do undefined ones.
DITTO_API std::vector<torch::Tensor> uploaded(const std::vector<torch::Tensor>& host, torch::Device device);
DITTO_API torch::Tensor uploaded(const torch::Tensor& host, torch::Device device);

}  // namespace ditto
