#include "memory.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace device {

namespace {
void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
}  // namespace

void* give(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
  check(cudaMemset(memory, 0xff, bytes));
  return memory;
}
void take(void* memory) { check(cudaFree(memory)); }
void up(void* to, const void* from, std::size_t bytes) { check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice)); }
void down(void* to, const void* from, std::size_t bytes) { check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost)); }

}  // namespace device
