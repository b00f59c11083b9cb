#include "core/measure/roofline.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace ditto::report {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Matrices {
  std::vector<double> memory;  // on the CPU: the tensors' bytes, outside of their allocator
  at::Tensor a, b, out;
};

Matrices make_matrices(at::ScalarType dtype, torch::Device device, int64_t size) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (!device.is_cpu()) {  // equal numbers would be multiplied faster, for they take less power
    const auto numbers = at::arange(size * size, options.dtype(at::kFloat)).sin_().to(dtype).view({size, size});
    return {{}, numbers, numbers.t().contiguous(), at::empty({size, size}, options)};
  }
  Matrices m;
  const auto one = static_cast<size_t>(size * size);  // eight bytes an element are enough for every dtype
  m.memory.resize(3 * one);
  m.a = at::from_blob(m.memory.data(), {size, size}, options).fill_(0.5);
  m.b = at::from_blob(m.memory.data() + one, {size, size}, options).fill_(0.5);
  m.out = at::from_blob(m.memory.data() + 2 * one, {size, size}, options);
  return m;
}

// Reading one number waits for a device that runs behind.
double timed(Matrices& m, int repeats) {
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) at::mm_out(m.out, m.a, m.b);
  if (!m.out.device().is_cpu()) (void)m.out[0][0].item().toDouble();
  return seconds_since(start) / repeats;
}

// On an accelerator the first one whose product takes long beside a launch, so that a slow one is done in time, too.
Matrices matrices_for(at::ScalarType dtype, torch::Device device) {
  if (device.is_cpu()) return make_matrices(dtype, device, 1024);
  constexpr int64_t kSmallest = 256, kLargest = 8192;
  constexpr double kLong = 0.01;
  for (int64_t size = kSmallest;; size *= 2) {
    auto m = make_matrices(dtype, device, size);
    timed(m, 1);  // chooses a kernel
    if (size == kLargest || timed(m, 1) > kLong) return m;
  }
}

}  // namespace

double matmul_gflops(at::ScalarType dtype, torch::Device device, double seconds) {
  const at::NoGradGuard no_grad;
  Matrices m = matrices_for(dtype, device);
  const auto size = static_cast<double>(m.a.size(0));
  const int repeats = device.is_cpu() ? 1 : 8;
  timed(m, 1);
  double best = timed(m, repeats);
  for (const auto start = Clock::now(); seconds_since(start) < seconds;) best = std::min(best, timed(m, repeats));
  return 2e-9 * size * size * size / best;
}

double stream_gbytes(double seconds) {
  const at::NoGradGuard no_grad;
  std::vector<float> memory(1 << 26, 1.f);  // outside of the tensors' allocator, as the matrices
  const auto numbers = at::from_blob(memory.data(), {1 << 26}, at::kFloat);
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto began = Clock::now();
    numbers.mul_(-1);
    best = std::max(best, 2e-9 * static_cast<double>(numbers.nbytes()) / seconds_since(began));
  } while (seconds_since(start) < seconds);
  return best;
}

std::optional<double> model_flops_use(std::optional<double> tflops, std::optional<double> peak_tflops) {
  if (!tflops || !peak_tflops || *peak_tflops <= 0) return {};
  return *tflops / *peak_tflops;
}

}  // namespace ditto::report
