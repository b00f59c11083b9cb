#include "core/process/processor.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <ATen/Parallel.h>
#include <torch/types.h>

namespace ditto {

namespace {

bool announces_tiles() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1u << 24)) != 0;
#else
  return false;
#endif
}

void multiply_in_bf16() {
  torch::set_num_threads(1);
  const auto x = torch::ones({64, 64}, torch::kBFloat16);
  torch::matmul(x, x);
}

}  // namespace

bool dies_in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    work();
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status);
}

std::string avoid_refused_instructions() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || !announces_tiles() || !dies_in_child(multiply_in_bf16)) return {};
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 1);
  return "the processor announces matrix tiles (AMX), but products on them die: going without (ONEDNN_MAX_CPU_ISA = "
         "AVX512_CORE_FP16)";
}

}  // namespace ditto
