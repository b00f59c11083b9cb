// What this processor really does, where that differs from what it says.
#pragma once

#include <string>

namespace ditto {

// Some virtual machines announce matrix tiles (AMX) and then refuse the instructions; LibTorch's bf16 products would
// end the process there. Tries one, and if it is refused keeps LibTorch to vector instructions (ONEDNN_MAX_CPU_ISA),
// unless that variable is set already. To be called before any tensor exists. Returns what was done, for people; empty:
// nothing.
std::string avoid_refused_instructions();

}  // namespace ditto
