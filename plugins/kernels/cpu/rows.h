// The plugin's rows, and what they share.
#pragma once

#include <ditto/ditto.h>

#include "storage.h"

namespace ditto_cpu {

ditto::KernelRow norm_modulate();
ditto::KernelRow gated_residual();
ditto::KernelRow gelu();
ditto::KernelRow silu();
ditto::KernelRow linear_gelu_tanh();
ditto::KernelRow group_norm();
ditto::KernelRow conv();
ditto::KernelRow conv_in_fp32();
ditto::KernelRow conv_transposed();
ditto::KernelRow conv_transposed_in_fp32();
ditto::KernelRow resample();
// Of bf16, where the processor multiplies pairs of it:
ditto::KernelRow attention();
ditto::KernelRow linear_bf16();
ditto::KernelRow linear_gelu_tanh_bf16();

// 10 for tensors that lie in this processor's memory in fp32 or bf16, all in the first one's dtype.
int score(const ditto::OpCall& call);
Storage storage_of(const torch::Tensor& x);

}  // namespace ditto_cpu
