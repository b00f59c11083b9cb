// What a kernel has made of a weight and will want again, such as its numbers in the order in which a product reads
// them.
#pragma once

#include <functional>
#include <string>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// What `make` gives of x's numbers. Where x is the copy of a parameter that layers compute with and autograd is off
// (sampling, validation), it is made once and kept with x until the parameter changes or learns, and takes its memory
// as long; else it is made at each call. `what`: the maker's own name for it, and for all that it depends on beside x.
DITTO_API torch::Tensor prepared(const torch::Tensor& x, const std::string& what,
                                 const std::function<torch::Tensor()>& make);

// For layers: x's numbers change only where this is called again. What was made of them before is forgotten.
DITTO_API void keep_prepared(const torch::Tensor& x);

}  // namespace ditto
