// The LibTorch that this process has loaded, which need not be the one that it was built with.
#pragma once

#include <string>

namespace ditto::report {

std::string loaded_libtorch();  // its release, "2.11.0"; empty: it does not say
std::string libtorch_build();   // its compiler and libraries, in one line: what else its numbers follow from
// Throws Error(plugin) where another release is loaded than Ditto was built with. Another build of the same release is
// taken.
void require_libtorch();

}  // namespace ditto::report
