// What a step costs a rank: its calls on other ranks, the memory its tensors take, the kernels that its ops ran.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ditto/optimizer.h>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/profile/step_breakdown.h"
#include "core/run_folder/metrics.h"

namespace ditto {

// What --trace asks for.
struct TraceOptions {
  bool comm = false;     // calls on other ranks, and memory
  bool kernels = false;  // which variant computed which op
  std::string file;      // for a Chrome trace of a step; "": none
};
// Of "comm", "kernels", and a file whose name ends in .json. Throws Error(config).
TraceOptions trace_options(const std::vector<std::string>& asked);
// Of bench step: a file alone, or "".
std::string trace_file(const std::string& asked);

// The collectives counted since the counts were cleared, by axes, op and pass: of a step and of its encoders.
std::vector<report::CommCount> comm_counts(const Networks& networks, const Mesh& mesh);

// Bytes of the tensors that this rank keeps between steps, by what they are for: "parameters", the leaves that the
// optimizer updates; "copies", what layers multiply with in their place; "gradients", "optimizer", "ema"; and "frozen",
// all of the networks that do not train.
std::map<std::string, int64_t> held_bytes(Networks& networks, Optimizer& optimizer, Ema& ema);

// For people: of rank 0 the counts, of every rank the memory, "activations" too, and "ahead" where it is there. Called
// by all ranks.
std::string comm_table(const Mesh& mesh, const std::vector<report::CommCount>& counts,
                       const std::map<std::string, int64_t>& memory);

std::vector<report::KernelCount> kernel_counts(const StepBreakdown::Found& found);
// For people: of all ranks together. Called by all ranks, with their own.
std::string kernel_table(const Mesh& mesh, const std::vector<report::KernelCount>& counts);

}  // namespace ditto
