#include "core/process/device.h"

#include <dlfcn.h>

#include <cstdlib>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <ditto/parallel/transport.h>

namespace ditto {

std::shared_ptr<Transport> make_transport(const Recipe& recipe, Registry& registry) {
  const auto id = transport_of(recipe);
  const auto where = recipe.place_of("run.transport");
  OptionReader none({"run", where, {}});
  auto made = guarded(plugin_name(Transport::kKind, id) + ", being made",
                      [&] { return registry.factory<Transport>(id, where).make(none, {}); });
  if (made->device() != c10::Device(recipe.run.device).type())
    throw Error(ErrorKind::config, where,
                "run.transport = \"" + id + "\" carries tensors of " +
                    c10::DeviceTypeName(made->device(), /*lower_case=*/true) + ", and run.device = \"" +
                    recipe.run.device + "\"",
                "leave it out, or name another one; see `ditto plugins list`");
  return made;
}

namespace {

[[noreturn]] void refuse(const Recipe& recipe, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::config, recipe.name, "run.device = \"cuda\", but " + why, remedy);
}

std::shared_ptr<Transport> open_cuda_transport(const Recipe& recipe, Registry& registry) {
  if (!recipe.run.transport.empty()) return make_transport(recipe, registry);
  try {
    return make_transport(recipe, registry);
  } catch (const Error& error) {
    refuse(recipe, "what it needs cannot be opened: " + std::string(error.what()),
           "install LibTorch's CUDA libraries and build with nvcc, or set run.device = \"cpu\"");
  }
}

// cuBLAS and NCCL read it when they are first used.
void prepare_environment() {
  const auto refuse_value = [](const char* name, const std::string& value, const std::string& why) {
    throw Error(ErrorKind::config, std::string("environment variable ") + name,
                "= \"" + value + "\" " + why + ", and run.deterministic = true asks for the same bits again",
                "unset it, or set run.deterministic = false");
  };
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  const std::string room = getenv("CUBLAS_WORKSPACE_CONFIG");
  if (room != ":4096:8" && room != ":16:8")
    refuse_value("CUBLAS_WORKSPACE_CONFIG", room, "lets cuBLAS choose by what other streams do");
  setenv("NCCL_ALGO", "^NVLS,NVLSTree", 0);  // these sum in the switch, in an order of its own
  const std::string algorithms = getenv("NCCL_ALGO");
  const auto names = [&](const std::string& name) {
    const auto list = "," + algorithms.substr(algorithms.starts_with('^')) + ",";
    return list.find("," + name + ",") != std::string::npos;
  };
  const bool may_use =
      algorithms.starts_with('^') ? !names("NVLS") || !names("NVLSTree") : algorithms.find("NVLS") != std::string::npos;
  if (may_use) refuse_value("NCCL_ALGO", algorithms, "lets NCCL sum in the switch, in an order of its own");
}

}  // namespace

void choose_kernels(bool deterministic) {
  auto& library = at::globalContext();
  library.setAllowTF32CuBLAS(false);
  library.setAllowTF32CuDNN(false);
  library.setBenchmarkCuDNN(false);  // a trial's winner may be another one next time
  library.setDeterministicCuDNN(deterministic);
  library.setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  library.setDeterministicFillUninitializedMemory(false);  // costs a write of every new tensor, and finds mistakes only
}

// LibTorch offers it to programs that link its CUDA part only.
std::string gpu_name(torch::Device device) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (!driver) return {};
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto get_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  int handle = 0;
  char name[256] = {};
  const bool known = get && get_name && get(&handle, device.index()) == 0 && get_name(name, sizeof name, handle) == 0;
  return known ? name : "";
}

Transports open_device(Recipe& recipe, Registry& registry, const RankInfo& rank) {
  if (recipe.run.device == "cpu")
    return transport_of(recipe).empty() ? Transports{} : Transports{make_transport(recipe, registry)};
  if (recipe.run.deterministic) prepare_environment();
  choose_kernels(recipe.run.deterministic);
  auto transport = open_cuda_transport(recipe, registry);
  const int gpus = static_cast<int>(at::getNumGPUs());
  if (gpus == 0) refuse(recipe, "this machine has no GPU that CUDA can use", "set run.device = \"cpu\"");
  if (gpus < rank.local_world_size && !transport->shares_devices())
    refuse(recipe,
           "this machine has " + std::to_string(gpus) + " GPU" + (gpus == 1 ? "" : "s") + " for " +
               std::to_string(rank.local_world_size) + " ranks",
           "start at most one rank a GPU");
  const c10::Device own(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(rank.local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(own);
  recipe.run.device = own.str();  // what was resolved stays "cuda": it is the same on all ranks
  return {std::move(transport)};
}

}  // namespace ditto
