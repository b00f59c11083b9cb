// What this processor really does, where that differs from what it says.
#pragma once

#include <functional>
#include <string>

namespace ditto {

// Whether a child process that does this dies of a signal.
bool dies_in_child(const std::function<void()>& work);

// Some virtual machines announce matrix tiles (AMX) on which LibTorch's bf16 products then die of an illegal
// instruction. Where tiles are announced, a child process tries one product; if it dies, LibTorch is kept to vector
// instructions (ONEDNN_MAX_CPU_ISA), unless that variable is set already. For processes that will make such products,
// before they have other threads or have multiplied anything. Returns what was done, for people; empty: nothing.
std::string avoid_refused_instructions();

}  // namespace ditto
