// What layers declare about the tensor axis, held against what a model makes of their outputs: on one rank.
#pragma once

#include <string>

#include "model/layer_flow.h"

namespace ditto::testing {

// The first layer whose Split is missing or wrong, in one sentence that names it; empty where none is. `flow` is of a
// forward whose graph is still there.
std::string wrong_split(const std::vector<FlowNode>& flow);

// Runs the model as the first of two tensor ranks would, with what layers leave to that rank and no other: what goes
// wrong where every Split is right, which is a number that is written in the code.
std::string written_number(Model& model, const Batch& in, Context& ctx, const std::vector<FlowNode>& flow);

}  // namespace ditto::testing
