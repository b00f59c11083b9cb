// Work shared among LibTorch's threads.
#include <ditto/math/threads.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

namespace ditto {
namespace {

struct Threads {
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

TEST_CASE("every number is in one piece, whatever the grain") {
  for (const int threads : {1, 2, 3}) {
    const Threads set(threads);
    for (const int64_t count : {0, 1, 7, 64, 1000})
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        in_threads(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& times : seen) CHECK(times == 1);
      }
  }
}

TEST_CASE("two threads work at the same time, and calls within calls run on their caller") {
  const Threads two(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> here{0}, elsewhere{0};
  in_threads(2, 1, [&](int64_t, int64_t) {
    const auto own = std::this_thread::get_id();
    {
      const std::lock_guard lock(mutex);
      threads.insert(own);
    }
    ++here;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (here < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();  // for the other one
    in_threads(100, 1, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() != own || begin != 0 || end != 100) ++elsewhere;
    });
  });
  CHECK(threads.size() == 2);
  CHECK(elsewhere == 0);
}

TEST_CASE("what a task throws comes to the caller") {
  const Threads two(2);
  CHECK_THROWS_AS(in_threads(8, 1,
                             [](int64_t begin, int64_t) {
                               if (begin == 5) throw std::runtime_error("five");
                             }),
                  std::runtime_error);
}

}  // namespace
}  // namespace ditto
