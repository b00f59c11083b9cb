// Fused kernels for processors, by vector instructions chosen at run time.
#include "rows.h"

#include <algorithm>

#include "attention.h"

namespace ditto_cpu {

int score(const ditto::OpCall& call) {
  const auto fits = [&](const torch::Tensor& x) {
    return !x.defined() || !x.is_floating_point() || x.scalar_type() == call.dtype;
  };
  const auto& tensors = call.inputs.tensors;
  const bool known = call.dtype == torch::kFloat || call.dtype == torch::kBFloat16;
  return call.device == torch::kCPU && known && std::all_of(tensors.begin(), tensors.end(), fits) ? 10 : 0;
}

Storage storage_of(const torch::Tensor& x) { return x.scalar_type() == torch::kFloat ? Storage::fp32 : Storage::bf16; }

}  // namespace ditto_cpu

namespace {

struct CpuKernels final : ditto::KernelSet {
  using Options = ditto::NoOptions;
  CpuKernels(const Options&, const Needs&) {}
  std::vector<ditto::KernelRow> rows() const override {
    std::vector<ditto::KernelRow> rows{ditto_cpu::norm_modulate(),
                                       ditto_cpu::gated_residual(),
                                       ditto_cpu::gelu(),
                                       ditto_cpu::silu(),
                                       ditto_cpu::linear_gelu_tanh(),
                                       ditto_cpu::group_norm(),
                                       ditto_cpu::conv(),
                                       ditto_cpu::conv_in_fp32(),
                                       ditto_cpu::conv_transposed(),
                                       ditto_cpu::conv_transposed_in_fp32(),
                                       ditto_cpu::resample()};
#if defined(__x86_64__)
    if (ditto_cpu::has_bf16_pairs())
      rows.insert(rows.end(), {ditto_cpu::attention(), ditto_cpu::linear_bf16(), ditto_cpu::linear_gelu_tanh_bf16()});
#endif
    for (auto& row : rows) row.copies = true;  // they go through numbers that follow one another
    return rows;
  }
};

}  // namespace

DITTO_PLUGIN(KernelSet, CpuKernels, "cpu", "1.2.0", "Apache-2.0",
             "fused passes over rows and maps; attention and linear layers in bf16; vector instructions")
