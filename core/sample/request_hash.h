// What names a request: all that decides its samples.
#pragma once

#include <string>

#include <torch/types.h>

#include "core/sample/generate.h"

namespace ditto {

// 32 hex digits of the numbers of the requests (of those that follow from another request: of that one), of the noise
// to start from (or none), and of `settings`, which says all else.
std::string request_hash(const SampleRequests& requests, const torch::Tensor& noise, const std::string& settings);

}  // namespace ditto
