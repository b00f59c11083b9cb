// How fast this machine multiplies matrices and moves numbers, and what share of that a run reaches.
#pragma once

#include <optional>

#include <torch/types.h>

namespace ditto::report {

// Best rate, in 10^9 operations a second (a multiplication and an addition count as two), of a product of two square
// matrices (1024 on the CPU, 8192 elsewhere) in this dtype with the threads that are set now. Takes about 0.2 s. The
// matrices are not counted by MemoryMeter on the CPU, and no random numbers are drawn.
double matmul_gflops(at::ScalarType dtype, torch::Device device = torch::kCPU, double seconds = 0.2);

// Best rate, in 10^9 bytes a second read and written, at which the threads that are set now multiply 256 MB of numbers
// where they are, in the processor's memory. Takes about 0.3 s.
double stream_gbytes(double seconds = 0.2);

// Achieved over peak, both in 10^12 operations a second, of as many devices; none where either is unknown.
std::optional<double> model_flops_use(std::optional<double> tflops, std::optional<double> peak_tflops);

}  // namespace ditto::report
