// One pass over numbers that follow one another.
#pragma once

#include <cstddef>

#include "storage.h"

namespace ditto_cpu {

// GELU in its tanh form (D. Hendrycks and K. Gimpel, 2016, arXiv:1606.08415), and SiLU: y of x, and dx of x and y's
// gradient.
enum class Activation { gelu_tanh, silu };
void activate(Activation kind, const void* x, void* y, size_t count, Storage storage);
void activate_back(Activation kind, const void* x, const void* grad, void* dx, size_t count, Storage storage);

// x + gate y of one row, and of its gradient dy; what goes to the gate's gradient is added to dgate, in fp32.
void gate(const void* x, const void* gate, const void* y, void* out, size_t width, Storage storage);
void gate_back(const void* gate, const void* y, const void* grad, void* dy, float* dgate, size_t width,
               Storage storage);

}  // namespace ditto_cpu
