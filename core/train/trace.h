// What a step costs a rank: its calls on other ranks, and the memory its tensors take.
#pragma once

#include <string>

#include <ditto/optimizer.h>

#include "core/report/metrics.h"
#include "core/train/assembly.h"
#include "core/train/ema.h"

namespace ditto {

// The collectives counted since the counts were cleared, by axes, op and pass.
std::vector<report::CommCount> comm_counts(const Traffic& traffic);

// Bytes of the tensors that this rank keeps between steps, by what they are for: "parameters", the leaves that the
// optimizer updates; "copies", what layers multiply with in their place; "gradients", "optimizer", "ema"; and "frozen",
// all of the networks that do not train.
std::map<std::string, int64_t> held_bytes(Networks& networks, Optimizer& optimizer, Ema& ema);

// For people: of rank 0 the counts, of every rank the memory, "activations" too. Called by all ranks.
std::string trace_table(const Mesh& mesh, const std::map<std::string, int64_t>& memory);

}  // namespace ditto
