// What one forward of a recipe's model would take, found out on shapes alone.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/components/components.h"

namespace ditto {

// Bytes are those of tensors, on one rank that has the whole model, as sampling and `ditto forward` have it: no
// gradient, optimizer or average.
struct ForwardPeak {
  std::string model, precision;
  int64_t parameters = 0;
  int64_t samples = 0, text_length = 0;  // of the forward; 0: no text has any number of tokens
  std::string size;                      // that samples have, where each has its own; empty: all have one
  int64_t weights = 0;                   // the parameters, and what layers multiply with in their place
  int64_t peak = 0;                      // most at once, the weights included
};

// Of `samples` at once. A text, which may have any length, has `text_length` tokens, or as many as the model
// takes where these are fewer. Throws what putting the recipe together throws, and Error(plugin) for a model that
// cannot be run on shapes alone.
ForwardPeak forward_peak(const Recipe& recipe, Registry& registry, int64_t samples, int64_t text_length);
std::string to_text(const ForwardPeak& forward);
nlohmann::ordered_json to_json(const ForwardPeak& forward);

}  // namespace ditto
