// What chooses the arithmetic of a process besides its recipe, its processor and its threads.
#pragma once

#include <map>
#include <string>

namespace ditto::report {

// The variables by which MKL, oneDNN, ATen, OpenMP, cuBLAS, NCCL, the C library and the loader choose how they compute,
// in the order of their names: "ATEN_CPU_CAPABILITY=avx2, MKL_CBWR=COMPATIBLE"; "none".
std::string arithmetic_variables();

// The libraries, of those that are loaded, that make numbers: functions, products, threads, decoded pictures and
// frames. By name, "libm" -> what names its build.
std::map<std::string, std::string> arithmetic_libraries();
bool decodes_pictures(const std::string& library);  // one of them: what it makes no run.numerics changes

// The beginning of the build ID that linkers give a library, "d6e6f9e3af1243ee"; where it has none "of 12345 bytes",
// its file's size.
std::string build_of_library(const std::string& path);  // of a loaded one

}  // namespace ditto::report
