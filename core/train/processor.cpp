#include "core/train/processor.h"

#include <cstdlib>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstdint>
#endif

namespace ditto {

#ifdef __x86_64__
namespace {

sigjmp_buf after_refusal;
void on_refusal(int) { siglongjmp(after_refusal, 1); }

bool announces_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1u << 24)) != 0;
}

__attribute__((target("amx-tile"))) void use_a_tile() {
  // Volatile: gcc takes the load for one of 8 bytes, and would leave the rest of the array unwritten, which is a fault.
  alignas(64) volatile std::uint8_t shape[64] = {1};  // palette 1
  shape[16] = 4;                                      // tile 0: one row of 4 bytes
  shape[48] = 1;
  _tile_loadconfig(const_cast<const std::uint8_t*>(shape));
  _tile_zero(0);
  _tile_release();
}

bool tiles_work() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return true;  // LibTorch asks too, and does without them
  struct sigaction ours {
  }, before{};
  ours.sa_handler = on_refusal;
  sigaction(SIGILL, &ours, &before);
  volatile bool work = false;
  if (sigsetjmp(after_refusal, 1) == 0) {
    use_a_tile();
    work = true;
  }
  sigaction(SIGILL, &before, nullptr);
  return work;
}

}  // namespace

std::string avoid_refused_instructions() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || !announces_tiles() || tiles_work()) return {};
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 1);
  return "the processor announces matrix tiles (AMX) but refuses them: going without "
         "(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)";
}

#else

std::string avoid_refused_instructions() { return {}; }

#endif

}  // namespace ditto
