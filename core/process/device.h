// Where a rank computes, and what carries its tensors to other ranks.
#pragma once

#include <string>

#include <torch/types.h>

#include "core/config/recipe.h"
#include "core/mesh/gloo_mesh.h"
#include "core/plugin/registry.h"

namespace ditto {

// To be called right after a recipe is read, before any tensor is made: LibTorch looks for CUDA once. Returns the
// transport that the recipe names; on CUDA by default nccl, which brings LibTorch's CUDA part, and on the CPU none.
// With run.device = "cuda" it makes this machine's GPU number rank.local_rank current; where the transport has it that
// ranks share GPUs, they take them in turn. Throws Error(config) where the plugin is missing or cannot be loaded, and
// where there are fewer GPUs than ranks on this machine. With run.deterministic, kernels are those that give the same
// bits again: CUBLAS_WORKSPACE_CONFIG and NCCL_ALGO are set, unless they are, and an op that has no such kernel throws;
// Error(config) where they are set to what sums in an order of its own. fp32 is never TF32.
Transports open_device(Recipe& recipe, Registry& registry, const RankInfo& rank);

// LibTorch's kernels on a GPU from now on: those that give the same bits again, or the fastest.
void choose_kernels(bool deterministic);

// The transport that run.transport names, and on CUDA nccl by default. Throws Error(plugin), and Error(config) where it
// carries tensors of another device than the run's.
std::shared_ptr<Transport> make_transport(const Recipe& recipe, Registry& registry);

std::string gpu_name(torch::Device device);  // "NVIDIA H100 80GB HBM3"; empty where the driver does not say

}  // namespace ditto
