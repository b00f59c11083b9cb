// One target as libFuzzer wants it; DITTO_FUZZ_TARGET is its name.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const ditto::fuzz::Target& chosen() {
  for (const auto& target : ditto::fuzz::targets())
    if (std::string_view(target.name) == DITTO_FUZZ_TARGET) return target;
  __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& target = chosen();
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
