// Rows of norm_modulate: y = (x - mean) * rstd * (1 + scale) + shift, and its backward. All of one row of D numbers;
// sums in fp32.
#pragma once

#include <cstddef>

#include "storage.h"

namespace ditto_cpu {

struct ForwardRow {
  const void *x, *shift, *scale;
  void* y;
  float *mean, *rstd;  // one number each
};
struct BackwardRow {
  const void *x, *scale, *grad;
  void* dx;
  float *dshift, *dscale;  // D numbers each, added to
  float mean, rstd;
};

void forward_row(const ForwardRow& row, size_t width, float eps, Storage storage);
void modulate_row(const ForwardRow& row, size_t width, Storage storage);  // by mean and rstd as forward left them
void backward_row(const BackwardRow& row, size_t width, Storage storage);
const char* instructions();  // what was chosen for this processor: "AVX3"

}  // namespace ditto_cpu
