// What NVIDIA's profilers would be shown: with NVTX_INJECTION64_PATH set to this library, the names of all ranges that
// a process begins and ends are lines of the file that NVTX_NAMES names: "begin 3 backward", "end 3".
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>

namespace {

void note(const char* what, nvtxRangeId_t id, const char* name) {
  static std::mutex mutex;
  static auto* const file = new std::ofstream(std::getenv("NVTX_NAMES"));
  const std::lock_guard lock(mutex);
  *file << what << " " << id << " " << name << std::endl;
}

nvtxRangeId_t NVTX_API start(const char* name) {
  static std::atomic<nvtxRangeId_t> next{1};
  const auto id = next++;
  note("begin", id, name);
  return id;
}

void NVTX_API end(nvtxRangeId_t id) { note("end", id, ""); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t exported) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(exported(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!std::getenv("NVTX_NAMES") || !callbacks ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) || size <= NVTX_CBID_CORE_RangeEnd)
    return 0;
  *table[NVTX_CBID_CORE_RangeStartA] = reinterpret_cast<NvtxFunctionPointer>(&start);
  *table[NVTX_CBID_CORE_RangeEnd] = reinterpret_cast<NvtxFunctionPointer>(&end);
  return 1;
}
