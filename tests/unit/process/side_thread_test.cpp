// A thread beside the one that trains does its work as that would.
#include "core/process/side_thread.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "core/measure/memory.h"

namespace ditto {
namespace {

TEST_CASE("its owner goes on while it works") {
  SideThread side(torch::kCPU);
  std::latch owner_is_here(1);
  std::atomic<bool> done = false;
  std::thread::id by;
  side.begin([&] {
    owner_is_here.wait();
    by = std::this_thread::get_id();
    done = true;
  });
  CHECK(side.is_at_work());
  CHECK_FALSE(done);
  owner_is_here.count_down();
  side.finish();
  CHECK(done);
  CHECK_FALSE(side.is_at_work());
  CHECK(by != std::this_thread::get_id());
}

TEST_CASE("it has its owner's number of threads, modes and meter, as they were when it began") {
  const int before = at::get_num_threads();
  const report::MemoryMeter meter;
  const report::MemoryMeter::Watch watch(meter);
  SideThread side(torch::kCPU);
  for (const int threads : {3, 2}) {
    at::set_num_threads(threads);
    int there = 0;
    bool with_gradients = true;
    int64_t counted = 0;
    {
      const torch::NoGradGuard no_grad;
      side.begin([&] {
        there = at::get_num_threads();
        with_gradients = torch::GradMode::is_enabled();
        const int64_t empty = meter.current();
        const auto made = torch::empty({1000});
        counted = meter.current() - empty;
      });
    }
    side.finish();
    CHECK(there == threads);
    CHECK_FALSE(with_gradients);
    CHECK(counted >= 4000);
  }
  bool with_gradients = false;
  side.begin([&] { with_gradients = torch::GradMode::is_enabled(); });
  side.finish();
  CHECK(with_gradients);
  at::set_num_threads(before);
}

TEST_CASE("what its work throws its owner is told once, and it works on") {
  SideThread side(torch::kCPU);
  side.begin([] { throw std::runtime_error("no"); });
  side.wait();
  CHECK_THROWS_WITH_AS(side.finish(), "no", std::runtime_error);
  side.finish();
  bool done = false;
  side.begin([&] { done = true; });
  side.finish();
  CHECK(done);
  side.begin([] { throw std::runtime_error("nobody asks"); });
  side.begin([] {});
  side.finish();
}

TEST_CASE("it ends after its work") {
  std::atomic<bool> done = false;
  {
    SideThread side(torch::kCPU);
    side.begin([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      done = true;
    });
  }
  CHECK(done);
}

}  // namespace
}  // namespace ditto
