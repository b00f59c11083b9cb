// Kernels of a GPU: what they are called with. No LibTorch and no CUDA here.
//
// Each is launched on a stream and gives CUDA's error number, 0 when it is launched. Memory is the GPU's; nothing of it
// is owned here. What is summed over tokens is summed in chunks, and a second kernel adds the chunks in their order: no
// atomics, so that bits depend on the operands and sizes alone.
//
// Legend: R rows, D their width, G groups of rows (samples of tokens, rows of a table).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ditto_cuda {

using Index = std::int64_t;
using Stream = void*;
using Status = int;

enum class Storage { fp32, bf16, fp16 };  // of numbers in memory; all is computed in fp32
constexpr std::size_t size_of(Storage storage) { return storage == Storage::fp32 ? 4 : 2; }

// Which group a row is of: of_row's, or each group has as many as the others, one after another. For sums over a
// group's rows where of_row is there: `order` has the rows group by group, those of group g at [starts[g], starts[g +
// 1]).
struct Groups {
  Index count, rows;
  const Index* of_row = nullptr;  // [R]
  const int* order = nullptr;     // [R]
  const int* starts = nullptr;    // [G + 1]
};
// Makes `order` and `starts` of `of_row`; rows whose group is none of [0, count) are left out.
Status group_rows(const Index* of_row, Index rows, Index groups, int* order, int* starts, Stream stream);

// Sums over rows have so many rows of chunks, of D numbers in fp32 each.
constexpr Index kChunk = 32;
constexpr Index chunk_rows(const Groups& groups) { return groups.rows / kChunk + groups.count; }
// out [G, D] of chunks; bytes of out as `storage` says.
Status add_chunks(const float* chunks, const Groups& groups, Index width, void* out, Storage storage, Stream stream);

// Whether norms, gates and sums walk rows of that width.
bool takes_rows(Index width, Storage storage);

// y = n w + b, n = (x - mean) rstd; without a mean x rstd (root mean square). w is `plus` + the weight of the row's
// group. Weight and bias [G, D] may be null.
struct Norm {
  const void *x, *weight, *bias;
  void* y;      // stored as `result`
  float* mean;  // [R, 2]: the mean, and what its rounding left of it; null: root mean square
  float* rstd;  // [R]
  Index width;
  float eps, plus;
  Groups groups;
  Storage storage, result;
};
Status norm(const Norm& p, Stream stream);

// dx = rstd (h - mean(h) - n mean(h n)) with h = grad w; of a root mean square without mean(h). Sums of chunks of rows:
// of grad, for the bias, and of grad n, for the weight. What is null is not made.
struct NormBack {
  const void *x, *weight, *grad;  // grad stored as `result`
  const float *mean, *rstd;
  void* dx;
  float *grad_chunks, *product_chunks;  // [chunk_rows, D]
  Index width;
  float plus;
  Groups groups;
  Storage storage, result;
};
Status norm_back(const NormBack& p, Stream stream);

// out = x + gate y, of the gate [G, D] of each row's group. x null: gate y; y null: x + gate, and without both the
// gate. It takes any width.
struct Gate {
  const void *x, *gate, *y;
  void* out;
  Index width;
  Groups groups;
  Storage storage;
};
Status gate(const Gate& p, Stream stream);

// dy = grad gate, and sums of chunks of rows: of grad y, y null: of grad. What is null is not made.
struct GateBack {
  const void *gate, *y, *grad;
  void* dy;
  float* chunks;  // [chunk_rows, D]
  Index width;
  Groups groups;
  Storage storage;
};
Status gate_back(const GateBack& p, Stream stream);

// Of each of n numbers. In fp32 they have the bits of plugins/kernels/exact.
enum class Function { silu, gelu_tanh, gelu_erf };
Status apply(Function f, const void* x, void* y, Index n, Storage storage, Stream stream);
Status apply_back(Function f, const void* x, const void* grad, void* dx, Index n, Storage storage, Stream stream);

// Along rows of a width that takes_rows. dx = y (grad - sum of grad y).
Status softmax(const void* x, void* y, Index rows, Index width, Storage storage, Stream stream);
Status softmax_back(const void* y, const void* grad, void* dx, Index rows, Index width, Storage storage, Stream stream);

}  // namespace ditto_cuda
