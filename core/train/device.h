// Where a rank computes, and what carries its tensors to other ranks.
#pragma once

#include "core/config/recipe.h"
#include "core/dist/gloo_mesh.h"
#include "core/plugin/registry.h"

namespace ditto {

// To be called right after a recipe is read, before any tensor is made: LibTorch looks for CUDA once. With
// run.device = "cuda" it opens the transport plugin 'nccl', which brings LibTorch's CUDA part, makes this machine's GPU
// number rank.local_rank current, and returns the plugin; with "cpu" it returns nothing. Throws Error(config) where the
// plugin is missing or cannot be loaded, and where there are fewer GPUs than ranks on this machine.
Transports open_device(Recipe& recipe, Registry& registry, const RankInfo& rank);

}  // namespace ditto
