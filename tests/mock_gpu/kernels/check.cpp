// The kernels of plugins/kernels/cuda on a mock GPU, as LibTorch's tensors reach them: every case of every op, strides
// and dtypes.
//
// Claim (machine): The rows for GPUs agree with their ops' references forward and backward, in all strides, wherever
// they say that they can compute: on a mock GPU. Also: `cuda_emulated`
#include <ATen/Context.h>

#include <cstdio>

#include <ditto/testing/checks.h>

int main(int count, char** words) {
  if (count != 2 || !at::globalContext().hasCUDA()) {
    std::fprintf(stderr, "usage: MOCK_GPUS=1 %s FILE, the plugin; there is %s mock GPU\n", words[0],
                 at::globalContext().hasCUDA() ? "a" : "no");
    return 2;
  }
  return ditto::testing::finish({ditto::testing::check_kernels(words[1])});
}
