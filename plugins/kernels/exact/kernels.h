// Kernels whose bits depend on the operands and on fixed leaves, and on nothing else.
//
// The rule of sums stands in <ditto/exact/leaves.h>.
//
// No LibTorch here, nor in what is compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ditto/exact/leaves.h>

namespace ditto_exact {

using namespace ditto::exact;

struct View {  // element (i, j) at p[i * rows + j * columns]
  const float* p;
  Index rows, columns;
};

// Who shares the tiles of a product; never a sum.
struct Workers {
  int threads;
  void (*run)(Index count, void* what, void (*task)(void* what, Index begin, Index end));
};

// C [M, N] = A [M, K] B [K, N] + bias [N], or without.
struct Product {
  Index M, N, K;
  View a, b;
  float* c;
  Index c_rows;  // from row to row
  const float* bias;
  Order order;
  bool bf16 = false;  // the numbers of A and B are rounded to bf16 first, to the nearest, of two the even one
};

// y = n w + b of rows of `width` numbers, n = (x - mean) rstd; without a mean, x rstd (root mean square). Rows share a
// row of w and b, `sharing` after `sharing` of them; w is `plus` + weight. Weight and bias may be null.
struct Norm {
  const float *x, *weight, *bias;
  float* y;
  float *mean, *rstd;  // a number for each row; mean null: root mean square
  Index width, sharing;
  float eps, plus;
};
struct NormBack {
  const float *x, *weight, *grad, *mean, *rstd;
  float* dx;
  Index width, sharing;
  float plus;
};

// The sum over rows of x, of x y, or of x (y - mean) rstd (mean may be null), by `leaves` of rows.
struct RowSum {
  const float *x, *y, *mean, *rstd;
  float* sum;
  Index width;
  const Leaf* leaves;
  Index leaf_count;
};

// One head of one sample. Numbers of a token follow one another; tokens lie `…_token` apart.
struct Attention {
  const float *q, *k, *v;
  Index q_token, k_token, v_token;
  float* out;
  Index out_token;
  float *m, *inverse;         // of each query the largest score, and the reciprocal of the sum
  const unsigned char* seen;  // a key each, or null
  bool causal;
  Index T, S, D;
  float scale;
  Index leaf;
  const float* bias = nullptr;  // [T][S], added to the scores, in forward alone; null: none
};
// Queries' heads [0, heads) that share one of keys, `q_head` apart in q and its gradient and `out_head` in the
// output's.
struct AttentionBack {
  Attention of;  // of the first head; m and inverse of the next are T further
  Index heads, q_head, out_head, dq_head;
  const float* grad;  // of the output, shaped as it
  float *dq, *dk, *dv;
  Index dq_token, dk_token, dv_token;
};

// A map's places, of three sides; one that is not there has one place. A convolution is the linear map of its unfolded
// places: of each place `channels` times `taps` numbers of x, in this order, +0 where x has none. Place q of a side has
// tap j at q step + first + j way of x.
struct Unfold {
  const float* x;  // [samples][channels][size…]
  Index samples, channels;
  Index size[3], places[3];
  Index taps[3], step[3], first[3], way[3];  // way: 1 or -1
};
// y[sample][m] = sum over channels and taps of weight[m] times the unfolded places, + bias[m], or without. The places
// of y are those of a larger map, `y_step` apart from `y_first` on.
struct MapProduct {
  Unfold of;
  Index M;
  const float *weight, *bias;  // [M][channels][taps…]
  float* y;                    // [samples][M][y_size…]
  Index y_size[3], y_first[3], y_step[3];
  Order order;  // through channels' taps; its runs are of whole channels
  bool bf16;
};
// sum[m][channel][tap] = sum over places [begin, end) of all samples' of g times the unfolded places, + bias[m].
struct MapGrad {
  Unfold of;
  Index M, begin, end;
  const float *g, *bias;  // [samples][M][places…]
  float* sum;
  Order order;  // through places: its runs are of g's numbers for m = 0
  bool bf16;
};

// Of x [samples][groups][channels][places], with a number of weight and bias for each channel, and of shift and scale
// for each sample's; shift and scale may be null. y = z or SiLU(z); z = n w + b, times (1 + scale), plus shift.
struct GroupNorm {
  const float *x, *weight, *bias, *shift, *scale;
  float *y, *mean, *rstd;          // of each group
  Index groups, channels, places;  // of a sample, of a group, of a channel
  float eps;
  bool silu;
};
// The sums are of one sample's places each.
struct GroupNormBack {
  GroupNorm of;  // without y
  const float* grad;
  float *dx, *dweight, *dbias, *dshift, *dscale;  // dshift and dscale: null with those
};

// y[row][j] = sum over k in [start[j], start[j + 1]) of weight[k] x[row][place[k]], in their order; a row of x has
// `from` times `inner` numbers, one of y `to` times as many.
struct Mixture {
  const float* x;
  float* y;
  Index from, to, inner;
  const Index *start, *place;
  const float* weight;
};

struct AdamW {
  float *w, *m, *v;
  const float* g;
  float decay, beta1, rest1, beta2, rest2, root2, eps, step;  // rest = 1 - beta; root2: of 1 - beta2^t
};

struct Kernels {
  const char* variant;
  int score;
  void (*product)(const Product&, const Workers&);
  void (*gelu)(const float* x, float* y, Index n);
  void (*gelu_back)(const float* x, const float* grad, float* dx, Index n);
  void (*gelu_erf)(const float* x, float* y, Index n);  // by the error function; the others have the tanh form
  void (*gelu_erf_back)(const float* x, const float* grad, float* dx, Index n);
  void (*silu)(const float* x, float* y, Index n);
  void (*silu_back)(const float* x, const float* grad, float* dx, Index n);
  void (*norm)(const Norm&, Index begin, Index end);  // rows
  void (*norm_back)(const NormBack&, Index begin, Index end);
  void (*row_sum)(const RowSum&, Index begin, Index end);  // columns
  void (*gate)(const float* x, const float* gate, const float* y, float* out,
               Index width);  // x + gate y; null x: gate y
  void (*add)(const float* a, const float* b, float* sum, Index n);
  void (*fill)(float* x, float value, Index n);
  float (*total)(const float* x, Index n);  // in sixteen lanes
  void (*attention)(const Attention&);
  void (*attention_back)(const AttentionBack&);
  void (*adamw)(const AdamW&, Index begin, Index end);
  void (*softmax)(const float* x, float* y, Index n);
  void (*softmax_back)(const float* y, const float* grad, float* dx, Index n);
  void (*add_scaled)(float scale, const float* x, float* sum, Index n);
  float (*dot)(const float* x, const float* y, Index n);  // in sixteen lanes
  void (*map_product)(const MapProduct&, const Workers&);
  void (*map_grad)(const MapGrad&, const Workers&);
  void (*group_norm)(const GroupNorm&, Index begin, Index end);  // groups
  void (*group_norm_back)(const GroupNormBack&, Index begin, Index end);
  // sums[row], of rows of so many numbers, by leaves of numbers
  void (*number_sums)(const float* x, Index width, const Leaf* leaves, Index leaf_count, float* sums, Index begin,
                      Index end);
  void (*add_number)(const float* x, float a, float* y, Index n);
  void (*mix)(const Mixture&, Index begin, Index end);  // rows
};

extern const Kernels kAvx512, kAvx2, kNeon, kPlain;

#if defined(__x86_64__)
// Products of numbers that are rounded to bf16 by AVX512_BF16's instruction for pairs of them, with the bits of the
// others; and whether it is here what that takes. For processors that have it.
void product_by_pairs(const Product& p, const Workers& workers);
void map_product_by_pairs(const MapProduct& p, const Workers& workers);
void map_grad_by_pairs(const MapGrad& p, const Workers& workers);
bool pairs_are_exact();
#endif

// Memory of the calling thread that lives until it asks for more under the same number, aligned to a cache line.
enum class Room { columns, rows, lines, keys, values, queries, scores, nodes, gradients, temporary, count };
float* room(Room which, Index floats);

}  // namespace ditto_exact
