// Rows of group_norm: z = n k + l with n = (x - mean) rstd, and y = z or SiLU(z); and its backward. Of a sample's map
// with channels first a row is a channel's places, with channels last it is a place's channels. Sums of rows are in
// fp32, what they are added to is in fp64.
#pragma once

#include <cstddef>

#include "storage.h"

namespace ditto_cpu {

enum class Along { places, channels };

// Rows that follow one another in memory. Arrays that have a number for each channel begin with the first row's, or,
// along channels, with the first of every row.
struct MapRows {
  size_t rows, width;
  Along along;
  Storage storage;
};

// What a norm is, one number a channel each.
struct GroupNorm {
  const float *mean, *rstd, *k, *l;
  bool silu;
};
// dx = p gz + q n + r, where gz is z's gradient.
struct GroupNormBack {
  const float *p, *q, *r;
};

// Added to each channel's: its numbers, or their squares around its mean.
void add_numbers(const MapRows& rows, const void* x, double* sums);
void add_squares(const MapRows& rows, const void* x, const float* mean, double* sums);
void normalise(const MapRows& rows, const void* x, const GroupNorm& norm, void* y);
// gz into `gz`, of y's gradient `grad`; added to each channel's: gz, and gz n.
void add_gradients(const MapRows& rows, const void* x, const void* grad, const GroupNorm& norm, void* gz,
                   double* sums_gz, double* sums_gzn);
void normalise_back(const MapRows& rows, const void* x, const GroupNorm& norm, const GroupNormBack& back,
                    void* gz_to_dx);

}  // namespace ditto_cpu
