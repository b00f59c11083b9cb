// The plugin's rows, and what they share.
#pragma once

#include <ditto/ditto.h>

#include "kernels.h"

namespace ditto_cuda {

using ditto::KernelRow;
using ditto::OpCall;
using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

KernelRow norm_modulate();
KernelRow layer_norm();
KernelRow rms_norm();
KernelRow gated_residual();
KernelRow add_row();
KernelRow embedding_rows();
KernelRow softmax();
KernelRow silu();
KernelRow gelu();
KernelRow sample_mean();
KernelRow group_norm();
KernelRow adamw_all();
KernelRow lion_all();
KernelRow sgd_all();
KernelRow square_sum();
KernelRow exact_linear();
KernelRow exact_linear_gelu_tanh();
class Blas;
KernelRow linear(const std::shared_ptr<Blas>& blas);
KernelRow linear_gelu_tanh(const std::shared_ptr<Blas>& blas);
KernelRow mlp_gelu_tanh(const std::shared_ptr<Blas>& blas);
KernelRow cudnn_attention();
KernelRow flash_attention();
std::vector<KernelRow> flash_attention_in_pieces();

// Whether all tensors lie in a GPU's memory, those of floating-point numbers all in the first one's dtype, which is one
// that kernels know.
bool fits(const OpCall& call);
constexpr int kScore = 20;

Storage storage_of(const Tensor& x);
// As kernels take it: numbers follow one another from a place that 16 bytes divide.
Tensor laid(const Tensor& x);
inline const void* numbers(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* place(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }
inline float* floats(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }
Tensor room(at::IntArrayRef sizes, const Tensor& like, at::ScalarType dtype = torch::kFloat);
Stream stream_of(const Tensor& x);  // the current one of its GPU
// Throws Error(plugin) for what CUDA does not launch.
void launched(Status status, const char* kernel);
bool wanted(const OpInputs& in, size_t tensor);

// Groups of rows; where a tensor says which row is of which, its order is made on the GPU.
class GroupsOf {
 public:
  GroupsOf(Index count, Index rows) : groups_{count, rows} {}
  GroupsOf(Index count, const Tensor& of_row);
  GroupsOf& under(Index apart) { return groups_.apart = apart, *this; }  // see Under
  const Groups& for_rows() const { return groups_; }
  const Groups& for_sums();
  // Sums of chunks [chunk_rows, width], in fp32, and of them a row a group.
  Tensor chunks(Index width, const Tensor& like);
  Tensor sum(const Tensor& chunks, at::ScalarType dtype);

 private:
  Groups groups_;
  Tensor of_row_, order_, starts_;
};

// What groups are under, one row [G, D] of each tensor, or a row [D] alone: read where it lies, where numbers follow
// one another and the rows of both are equally far apart.
struct Under {
  explicit Under(const Tensor& rows, const Tensor& more = {});
  Tensor rows, more;
  Index apart;
};

// The sum of the rows [rows, width] of each group.
Tensor sum_of_rows(const Tensor& rows, Index width, GroupsOf groups, at::ScalarType dtype);

}  // namespace ditto_cuda
