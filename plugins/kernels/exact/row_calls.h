// What the rows of this plugin share: calls that exact kernels can answer, orders of sums, and threads.
#pragma once

#include <vector>

#include <ditto/ditto.h>
#include <ditto/exact/terms.h>

#include "kernels.h"

namespace ditto_exact {

using ditto::KernelRow;
using ditto::OpCall;
using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

// The rows of an instruction set, by what they compute.
KernelRow linear(const Kernels& k);
KernelRow linear_gelu_tanh(const Kernels& k);
KernelRow silu(const Kernels& k);
KernelRow gelu(const Kernels& k);
KernelRow rms_norm(const Kernels& k);
KernelRow layer_norm(const Kernels& k);
KernelRow norm_modulate(const Kernels& k);
KernelRow gated_residual(const Kernels& k);
KernelRow attention(const Kernels& k);
KernelRow embedding_rows(const Kernels& k);
KernelRow add_row(const Kernels& k);
KernelRow sample_mean(const Kernels& k);
KernelRow adamw(const Kernels& k);
KernelRow exp(const Kernels& k);
KernelRow log(const Kernels& k);
KernelRow tanh(const Kernels& k);
KernelRow sin(const Kernels& k);
KernelRow cos(const Kernels& k);
KernelRow softmax(const Kernels& k);
KernelRow row_total(const Kernels& k);
KernelRow expert_balance(const Kernels& k);
KernelRow token_rows(const Kernels& k);
KernelRow combine_rows(const Kernels& k);
KernelRow experts(const Kernels& k);
KernelRow add_expert_rows(const Kernels& k);
KernelRow conv(const Kernels& k);
KernelRow conv_transposed(const Kernels& k);
KernelRow group_norm(const Kernels& k);
KernelRow add_channels(const Kernels& k);
KernelRow resample(const Kernels& k);
std::vector<KernelRow> bf16_rows(const Kernels& k);

// fp32 on processors; a leaf of tokens, where one is given, that is one.
bool fits(const OpCall& call);
bool fits_with_leaf(const OpCall& call);
// Of a product: the kernels', but for calls without leaves where LibTorch's own products have this processor's best
// instructions: MKL's, on Intel's.
int product_score(const Kernels& k, const OpCall& call);
// Of an op over maps: the kernels' where one number is asked for; else others compute it.
int map_score(const Kernels& k, const OpCall& call);

void share(Index count, void* what, void (*task)(void* what, Index begin, Index end));
template <class F>
void share(Index count, F task) {
  share(count, &task, [](void* what, Index begin, Index end) { (*static_cast<F*>(what))(begin, end); });
}
Workers workers();

constexpr Index kGrain = 16 * 1024;  // numbers that are worth a thread

template <class F>
void in_parts(Index count, Index width, F task) {  // of rows of `width` numbers
  const Index grain = most(1, kGrain / most(1, width));
  share(parts(count, grain), [&](Index begin, Index end) { task(begin * grain, least(count, end * grain)); });
}

inline const float* numbers(const Tensor& x) { return x.const_data_ptr<float>(); }
inline float* place(const Tensor& x) { return x.data_ptr<float>(); }

// Sums over all rows, [D], and over each sample's, [S, D].
Tensor sum_of_rows(const Kernels& k, const RowSum& sum, const Tokens& x, const std::vector<Leaf>& row_leaves);
Tensor sums_of_samples(const Kernels& k, const RowSum& sum, const Tokens& x, Index leaf);
// Of a map [S, C, …] each channel's sum over its places in leaves, [S, C]; and of such sums that over samples, [C].
Tensor sums_of_channels(const Kernels& k, const Tensor& map, Index leaf);
Tensor sum_of_samples(const Kernels& k, const Tensor& rows_SC, const OpInputs& in);

}  // namespace ditto_exact
