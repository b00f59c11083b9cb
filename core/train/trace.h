// What a step costs a rank: its calls on other ranks, and the memory its tensors take.
#pragma once

#include <string>

#include <ditto/optimizer.h>

#include "core/report/memory.h"
#include "core/report/metrics.h"
#include "core/train/assembly.h"
#include "core/train/ema.h"

namespace ditto {

// The collectives counted since the counts were cleared, by axes, op and pass.
std::vector<report::CommCount> comm_counts(const Traffic& traffic);

// Bytes of this rank's tensors after a step, by what they are for. What is neither gradient, optimizer state nor
// average and stays between steps is "parameters": weights, fp32 masters, copies in the compute dtype, and batches read
// ahead. "activations": the step's peak above all of these.
std::map<std::string, int64_t> memory_shares(const Assembly& assembly, Optimizer& optimizer, Ema& ema,
                                             const report::MemoryMeter& meter);

// For people: of rank 0 the counts, of every rank the memory. Called by all ranks.
std::string trace_table(const Mesh& mesh, const std::map<std::string, int64_t>& memory);

}  // namespace ditto
