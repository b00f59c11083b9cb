// The LibTorch that this process has loaded, which need not be the one that it was built with.
#pragma once

#include <string>

namespace ditto::report {

// Neither asks whether there is CUDA: the first question decides that for good (core/process/device.h).
std::string loaded_libtorch();  // its release, "2.11.0"; empty: it does not say
std::string
libtorch_build();  // its commit, MKL, oneDNN and build ID, in one line: what its numbers follow from besides
// Throws Error(plugin) where another release is loaded than Ditto was built with. Another build of the same release is
// taken: runs note which, ranks and resumes compare it.
void require_libtorch();

}  // namespace ditto::report
