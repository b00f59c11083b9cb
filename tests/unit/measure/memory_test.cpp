#include "core/measure/memory.h"

#include <doctest/doctest.h>
#include <torch/types.h>

#include <thread>

#include "core/measure/roofline.h"

using namespace ditto::report;

TEST_CASE("tensors are counted while a thread watches: now, at the peak, and after a reset") {
  MemoryMeter meter;
  const MemoryMeter::Watch watch(meter);
  constexpr int64_t kBytes = 4 * 1000 * 1000;
  auto one = torch::empty({1000, 1000});
  { const auto two = torch::empty({1000, 1000}); }
  CHECK(meter.current() == kBytes);
  CHECK(meter.peak() == 2 * kBytes);
  meter.reset_peak();
  CHECK(meter.peak() == kBytes);
  one.reset();
  CHECK(meter.current() == 0);
  CHECK(meter.peak() == kBytes);
}

TEST_CASE("backward is counted") {
  MemoryMeter meter;
  const MemoryMeter::Watch watch(meter);
  const auto weight = torch::ones({512, 512}, torch::requires_grad());
  weight.mul(2).square().sum().backward();
  CHECK(meter.current() == 2 * 4 * 512 * 512);  // the weight and its gradient
  CHECK(meter.peak() >= 4 * 4 * 512 * 512);
}

TEST_CASE("a thread that watches is counted, one that does not is not") {
  MemoryMeter meter;
  std::thread([] { torch::empty({1000}); }).join();
  CHECK(meter.peak() == 0);
  std::thread([&] {
    const MemoryMeter::Watch watch(meter);
    torch::empty({1000});
  }).join();
  CHECK(meter.peak() == 4000);
  CHECK(meter.current() == 0);
}

TEST_CASE("a tensor is counted for who made it, whichever thread frees it") {
  MemoryMeter meter, other;
  const MemoryMeter::Watch watch(meter);
  auto ours = torch::empty({1000}), theirs = torch::empty({0}), others = theirs;
  std::thread([&] { theirs = torch::empty({3000}); }).join();
  std::thread([&] {
    const MemoryMeter::Watch watches_other(other);
    others = torch::empty({5000});
  }).join();
  CHECK(meter.current() == 4000);
  theirs.reset();  // nobody's
  others.reset();
  CHECK(meter.current() == 4000);
  CHECK(other.current() == 0);
  CHECK(other.peak() == 20000);
  std::thread([&] { ours.reset(); }).join();
  CHECK(meter.current() == 0);
  CHECK(meter.peak() == 4000);
}

TEST_CASE("a tensor may outlive the meter that counts it, and grow") {
  torch::Tensor x;
  {
    MemoryMeter meter;
    const MemoryMeter::Watch watch(meter);
    x = torch::arange(10);
    CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64 == 0);
    x.resize_({1000});
    CHECK(meter.current() == 8000);
  }
  CHECK(x.narrow(0, 0, 10).equal(torch::arange(10)));
}

TEST_CASE("measuring the matrix rate is not counted as the run's memory") {
  MemoryMeter meter;
  const MemoryMeter::Watch watch(meter);
  const double rate = matmul_gflops(torch::kFloat, torch::kCPU, 0.01);
  CHECK(rate > 0.1);
  CHECK(rate < 1e6);
  CHECK(meter.peak() < 1 << 20);
}

TEST_CASE("the share of the peak is unknown while either is") {
  CHECK(model_flops_use(2.0, 4.0) == 0.5);
  CHECK_FALSE(model_flops_use({}, 4.0));
  CHECK_FALSE(model_flops_use(2.0, {}));
  CHECK_FALSE(model_flops_use(2.0, 0.0));
}
