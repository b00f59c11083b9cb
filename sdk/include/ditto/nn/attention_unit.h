// The parts of an attention sub-layer, for Context::attention_unit.
#pragma once

#include <torch/types.h>

#include <ditto/nn/linear.h>

namespace ditto {

// One of the sequences of an attention sub-layer: x is mapped by `heads`, attends, and is mapped by `rows`; without
// `rows` it lends its keys and values alone. Whose tokens x is, the layers' Split says.
struct AttentionUnitPart {
  Linear heads, rows;
  torch::Tensor x;
};

}  // namespace ditto
