// Work on all cores whose results come in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace ditto {

// Calls make(i) for i = 0 … count - 1 on so many threads, and take(i, its result) in that order here. Two results a
// thread wait at most. Throws what the first make or take in order threw: the same one on any number of threads.
template <class Make, class Take>
void in_order(int64_t count, int64_t threads, const Make& make, const Take& take) {
  using Result = std::invoke_result_t<Make, int64_t>;
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr error;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots(static_cast<size_t>(2 * threads));
  int64_t next = 0, taken = 0;
  bool over = false;
  const auto slot_of = [&](int64_t i) -> Slot& { return slots[static_cast<size_t>(i) % slots.size()]; };
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return over || next == count || next < taken + static_cast<int64_t>(slots.size()); });
      if (over || next == count) return;
      const int64_t i = next++;
      lock.unlock();
      Slot made;
      try {
        made.result.emplace(make(i));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      slot_of(i) = std::move(made);
      changed.notify_all();
    }
  };
  struct End {
    std::mutex& mutex;
    std::condition_variable& changed;
    bool& over;
    ~End() {
      const std::lock_guard lock(mutex);
      over = true;
      changed.notify_all();
    }
  };
  std::vector<std::jthread> workers;
  const End end{mutex, changed, over};  // before the threads are waited for
  for (int64_t i = 0; i < threads; ++i) workers.emplace_back(work);
  for (int64_t i = 0; i < count; ++i) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return slot_of(i).result || slot_of(i).error; });
    Slot made = std::exchange(slot_of(i), {});
    taken = i + 1;
    changed.notify_all();
    lock.unlock();
    if (made.error) std::rethrow_exception(made.error);
    take(i, std::move(*made.result));
  }
}

}  // namespace ditto
