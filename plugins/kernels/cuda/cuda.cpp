// Fused kernels for NVIDIA's GPUs. It links no library of LibTorch's for CUDA: whatever device calls itself CUDA in
// this process gives the memory and the streams.
#include <algorithm>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <ditto/exact/terms.h>

#include "blas.h"
#include "rows.h"

#ifndef DITTO_KERNELS_NAME  // tests/mock_gpu: the same kernels, emulated, stand beside these
#define DITTO_KERNELS_NAME "cuda"
#endif

namespace ditto_cuda {

bool fits(const OpCall& call) {
  const bool known = call.dtype == torch::kFloat || call.dtype == torch::kBFloat16 || call.dtype == torch::kHalf;
  const auto& tensors = call.inputs.tensors;
  const auto there = [&](const Tensor& x) {
    if (!x.defined()) return true;
    const bool of_call = x.device().type() == call.device || x.is_meta();  // shapes alone stand for the device's
    return of_call && (!x.is_floating_point() || x.scalar_type() == call.dtype);
  };
  return call.device == torch::kCUDA && known && std::all_of(tensors.begin(), tensors.end(), there);
}

Storage storage_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case torch::kFloat: return Storage::fp32;
    case torch::kBFloat16: return Storage::bf16;
    default: return Storage::fp16;
  }
}

Tensor laid(const Tensor& x) {
  if (!x.defined()) return x;
  const Tensor one = x.detach().contiguous();
  return reinterpret_cast<std::uintptr_t>(one.const_data_ptr()) % 16 == 0 ? one : one.clone();
}

Tensor room(at::IntArrayRef sizes, const Tensor& like, at::ScalarType dtype) {
  return torch::empty(sizes, torch::TensorOptions(dtype).device(like.device()));
}

Stream stream_of(const Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  return guard.getStreamNativeHandle(guard.getStream(x.device()));
}

void launched(Status status, const char* kernel) {
  if (status == 0) return;
  throw ditto::Error(ditto::ErrorKind::plugin, std::string("the kernel ") + kernel + " for GPUs",
                     "is not launched: CUDA's error " + std::to_string(status),
                     "see the error's name in CUDA's cudaError_t; leave the op to its reference by "
                     "kernels.OP = \"reference\"");
}

bool wanted(const OpInputs& in, size_t tensor) { return ditto::exact::wanted(in, tensor); }

Under::Under(const Tensor& rows_, const Tensor& more_) : rows(rows_), more(more_), apart(0) {
  const auto lies = [&](const Tensor& x) {
    return !x.defined() || (x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1) &&
                            (!rows.defined() || x.stride(0) == rows.stride(0)));
  };
  if (rows.defined() && lies(rows) && lies(more)) {
    apart = rows.stride(0);
    rows = rows.detach();
    if (more.defined()) more = more.detach();
  } else {
    rows = laid(rows), more = laid(more);
  }
}

GroupsOf::GroupsOf(Index count, const Tensor& of_row) : groups_{count, of_row.numel()}, of_row_(laid(of_row)) {
  groups_.of_row = of_row_.const_data_ptr<int64_t>();
}

const Groups& GroupsOf::for_sums() {
  if (!of_row_.defined() || order_.defined()) return groups_;
  order_ = room({groups_.rows}, of_row_, torch::kInt), starts_ = room({groups_.count + 1}, of_row_, torch::kInt);
  launched(group_rows(groups_.of_row, groups_.rows, groups_.count, order_.data_ptr<int>(), starts_.data_ptr<int>(),
                      stream_of(of_row_)),
           "group_rows");
  groups_.order = order_.const_data_ptr<int>(), groups_.starts = starts_.const_data_ptr<int>();
  return groups_;
}

Tensor GroupsOf::chunks(Index width, const Tensor& like) { return room({chunk_rows(groups_), width}, like); }

Tensor GroupsOf::sum(const Tensor& chunks, at::ScalarType dtype) {
  const Tensor out = room({groups_.count, chunks.size(1)}, chunks, dtype);
  launched(add_chunks(floats(chunks), for_sums(), chunks.size(1), place(out), storage_of(out), stream_of(out)),
           "add_chunks");
  return out;
}

Tensor sum_of_rows(const Tensor& rows, Index width, GroupsOf groups, at::ScalarType dtype) {
  const Tensor chunks = groups.chunks(width, rows);
  launched(
      gate_back({nullptr, nullptr, numbers(rows), nullptr, floats(chunks), width, groups.for_sums(), storage_of(rows)},
                stream_of(rows)),
      "gate_back");
  return groups.sum(chunks, dtype);
}

}  // namespace ditto_cuda

namespace {

// A kernel is launched on the GPU that is current, which in a thread that nobody told of its rank's is the first one.
std::optional<c10::Device> gpu_of(const ditto::Tensors& list) {
  for (const auto& x : list)
    if (x.defined() && x.is_cuda()) return x.device();
  return std::nullopt;
}
void launch_where_tensors_are(ditto::KernelRow& row) {
  row.forward = [forward = row.forward](const ditto::OpInputs& in) {
    const c10::OptionalDeviceGuard guard(gpu_of(in.tensors));
    return forward(in);
  };
  if (row.backward)
    row.backward = [backward = row.backward](const ditto::Tensors& grads, const ditto::OpInputs& in,
                                             const ditto::Tensors& results) {
      const c10::OptionalDeviceGuard guard(gpu_of(grads));
      return backward(grads, in, results);
    };
  if (row.backward_onto)
    row.backward_onto = [backward = row.backward_onto](const ditto::Tensors& grads, const ditto::OpInputs& in,
                                                       const ditto::Tensors& results, const ditto::Tensors& sums) {
      const c10::OptionalDeviceGuard guard(gpu_of(grads));
      return backward(grads, in, results, sums);
    };
  if (row.again)
    row.again = [again = row.again](const ditto::OpInputs& in, const ditto::Tensors& results) {
      const c10::OptionalDeviceGuard guard(gpu_of(gpu_of(in.tensors) ? in.tensors : results));
      return again(in, results);
    };
}

struct CudaKernels final : ditto::KernelSet {
  using Options = ditto::NoOptions;
  CudaKernels(const Options&, const Needs& needs)
      : blas_(std::make_shared<ditto_cuda::Blas>(needs.kept, DITTO_KERNELS_NAME)) {}
  std::vector<ditto::KernelRow> rows() const override {
    std::vector<ditto::KernelRow> rows{ditto_cuda::norm_modulate(),
                                       ditto_cuda::layer_norm(),
                                       ditto_cuda::rms_norm(),
                                       ditto_cuda::gated_residual(),
                                       ditto_cuda::add_row(),
                                       ditto_cuda::embedding_rows(),
                                       ditto_cuda::softmax(),
                                       ditto_cuda::silu(),
                                       ditto_cuda::gelu(),
                                       ditto_cuda::sample_mean(),
                                       ditto_cuda::group_norm(),
                                       ditto_cuda::adamw_all(),
                                       ditto_cuda::lion_all(),
                                       ditto_cuda::sgd_all(),
                                       ditto_cuda::square_sum(),
                                       ditto_cuda::exact_linear(),
                                       ditto_cuda::exact_linear_gelu_tanh(),
                                       ditto_cuda::linear(blas_),
                                       ditto_cuda::linear_gelu_tanh(blas_),
                                       ditto_cuda::mlp_gelu_tanh(blas_)};
    rows.push_back(ditto_cuda::cudnn_attention());
    rows.push_back(ditto_cuda::flash_attention());
    for (auto& row : ditto_cuda::flash_attention_in_pieces()) rows.push_back(std::move(row));
    // Kernels take pointers to numbers that follow one another; attention copies where 8 does not divide a stride.
    for (auto& row : rows) row.copies = true;
    for (auto& row : rows) launch_where_tensors_are(row);
    return rows;
  }
  // cublasLt's algorithms, by products.
  std::optional<ditto::KernelChoices> kept() const override { return blas_->kept(); }

 private:
  std::shared_ptr<ditto_cuda::Blas> blas_;
};

}  // namespace

DITTO_PLUGIN(KernelSet, CudaKernels, DITTO_KERNELS_NAME, "1.0.0", "Apache-2.0",
             "fused passes, products by cublasLt, attention and an exact product on NVIDIA's GPUs")
