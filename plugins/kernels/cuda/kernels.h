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

#include <ditto/exact/leaves.h>

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
  Index apart = 0;  // numbers from one of the rows [G, D] that groups are under to the next one; 0: as many as it has
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

// mean [S] of each of S samples' n numbers, summed in fp64; `room`: sample_room(S, n) numbers. And dx = grad [S] / n.
Index sample_room(Index samples, Index n);
Status sample_mean(const void* x, void* mean, double* room, Index samples, Index n, Storage storage, Stream stream);
Status sample_mean_back(const void* grad, void* dx, Index samples, Index n, Storage storage, Stream stream);

// A parameter of an update. What is null is not there. Nothing of it is aligned but as its numbers are.
struct Parameter {
  float *w, *m, *v, *average;  // m and v: what the optimizer keeps of it
  const float* g;
  std::uint16_t* copy;  // of the new weight, in bf16
  Index count;
  float decay;  // of AdamW and Lion what a weight keeps, 1 - lr * weight decay; of SGD the weight decay
};
// Parameters in pieces of as many numbers, which blocks take: `firsts` [count + 1] is the piece that each begins with.
// Both lie in the GPU's memory.
struct Parameters {
  const Parameter* at;
  const int* firsts;
  Index count, pieces;  // pieces: firsts[count]
};
constexpr Index kPiece = 4096;
constexpr Index pieces_of(Index numbers) { return (numbers + kPiece - 1) / kPiece; }

// What an update must know of all gradients, in the GPU's memory.
struct Gradients {
  double norm;  // of all of them, times `scale`
  float clip;   // what to multiply them with: `scale`, and less where the norm is above `most`
  int finite;   // 0: a number is none or infinite, and the update changes nothing
};
// In one read of the gradients; `room`: a number a piece. most 0: no clipping.
Status gradient_norm(const Parameters& p, double* room, double scale, double most, Gradients* out, Stream stream);

struct AdamW {
  float beta1, beta2, eps;
  float rate;      // lr / (1 - beta1^step)
  float root;      // 1 / sqrt(1 - beta2^step)
  float approach;  // 1 - the average's decay
};
struct Lion {
  float beta1, rest1, beta2, rest2;  // rest = 1 - beta
  float lr, approach;
};
struct Sgd {
  float momentum, lr, approach;
  bool nesterov;
};
// In one pass over memory, each number by itself; `gradients` is read on the GPU. AdamW has the bits of
// plugins/optimizers/adamw on a processor that has fused multiply-adds.
Status adamw(const Parameters& p, const AdamW& update, const Gradients* gradients, Stream stream);
Status lion(const Parameters& p, const Lion& update, const Gradients* gradients, Stream stream);
Status sgd(const Parameters& p, const Sgd& update, const Gradients* gradients, Stream stream);

// C [M, N] = A [M, K] B [K, N] + bias [N], or without, in fp32, with the bits of plugins/kernels/exact: a leaf of K is
// a chain of fused multiply-adds from +0, and leaves are added as a binary tree.
struct View {  // element (i, j) at p[i * rows + j * columns]
  const float* p;
  Index rows, columns;
};
using ditto::exact::Leaf;
struct ExactProduct {
  Index M, N, K;
  View a, b;
  float* c;
  Index c_rows;  // from row to row
  const float* bias;
  const Index* places;  // [K], in the GPU's memory: which number of K comes when; null: one after another
  const Leaf* leaves;   // in the GPU's memory
  Index leaf_count;
  bool bf16;    // the numbers of A and B are rounded to bf16 first
  float* open;  // open_room() numbers for nodes of the tree that shared memory has no place for
};
// open_nodes: of the tree, at once, at most.
Index open_room(Index M, Index N, Index open_nodes);
Status exact_product(const ExactProduct& p, Index open_nodes, Stream stream);

// GroupNorm of maps x [B, C, P], or with channels last [B, P, C]: z = n k + l, n = (x - mean) rstd of a sample's group
// of channels, k = weight (1 + scale), l = bias (1 + scale) + shift; y = z, or SiLU(z).
struct GroupNorm {
  const void *x, *weight, *bias;  // weight, bias [C]
  const void *shift, *scale;      // [B, C], or both null
  float* mean;                    // [B, groups, 2]: the mean, and what its rounding left of it
  float* rstd;                    // [B, groups]
  Index samples, channels, places, groups;
  bool channels_last, silu;
  float eps;
  Storage storage;
};
struct GroupNormBack {
  const void* grad;
  void* dx;                // laid as x
  float *dweight, *dbias;  // [C]
  void *dshift, *dscale;   // [B, C]; null where there is no shift
};
Index group_norm_room(const GroupNorm& p);  // numbers of `room`
Status group_norm(const GroupNorm& p, void* y, float* room, Stream stream);
Status group_norm_back(const GroupNorm& p, const GroupNormBack& back, float* room, Stream stream);

}  // namespace ditto_cuda
