#include "core/train/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <ditto/transport.h>

namespace ditto {

namespace {

[[noreturn]] void refuse(const Recipe& recipe, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::config, recipe.name, "run.device = \"cuda\", but " + why, remedy);
}

std::shared_ptr<Transport> open_nccl(const Recipe& recipe, Registry& registry) {
  try {
    OptionReader none({"parallel", recipe.name, {}});
    return registry.factory<Transport>("nccl", recipe.name).make(none, {});
  } catch (const Error& error) {
    refuse(recipe, "what it needs cannot be opened: " + std::string(error.what()),
           "install LibTorch's CUDA libraries and build with nvcc, or set run.device = \"cpu\"");
  }
}

}  // namespace

Transports open_device(Recipe& recipe, Registry& registry, const RankInfo& rank) {
  if (recipe.run.device == "cpu") return {};
  auto nccl = open_nccl(recipe, registry);
  const int gpus = static_cast<int>(at::getNumGPUs());
  if (gpus == 0) refuse(recipe, "this machine has no GPU that CUDA can use", "set run.device = \"cpu\"");
  if (gpus < rank.local_world_size)
    refuse(recipe,
           "this machine has " + std::to_string(gpus) + " GPU" + (gpus == 1 ? "" : "s") + " for " +
               std::to_string(rank.local_world_size) + " ranks",
           "start at most one rank a GPU");
  const c10::Device own(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(rank.local_rank));
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(own);
  recipe.run.device = own.str();  // what was resolved stays "cuda": it is the same on all ranks
  return {std::move(nccl)};
}

}  // namespace ditto
