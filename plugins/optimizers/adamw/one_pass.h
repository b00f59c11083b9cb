// An update of all that follows from a gradient, in one pass over memory. Each number by itself: a slice has the bits
// of the whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ditto_adamw {

struct Pass {
  float *w, *g, *m, *v;
  float* average;       // null: there is none
  std::uint16_t* copy;  // of the new weight in bf16; null: there is none
  float clip, beta1, beta2, eps;
  float keep;      // 1 - lr * weight decay
  float rate;      // lr / (1 - beta1^step)
  float root;      // 1 / sqrt(1 - beta2^step)
  float approach;  // 1 - the average's decay
};
void run(const Pass& pass, size_t begin, size_t end);

}  // namespace ditto_adamw
