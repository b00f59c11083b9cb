// What this processor really does, where that differs from what it says.
#pragma once

#include <string>

#include <torch/types.h>

namespace ditto {

// Some virtual machines announce matrix tiles (AMX) on which LibTorch's bf16 products then die of an illegal
// instruction. Where tiles are announced and `compute` is bf16, a child process tries one product; if it
// dies, LibTorch is kept to vector instructions (ONEDNN_MAX_CPU_ISA), unless that variable is set already. To be called
// before the process has other threads or has multiplied anything. Returns what was done, for people; empty: nothing.
std::string avoid_refused_instructions(at::ScalarType compute);

}  // namespace ditto
