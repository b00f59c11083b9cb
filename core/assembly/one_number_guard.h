// Under run.numerics = "one" ops compute with exact rows alone; what models, objectives and backward ask of LibTorch
// beside them may be one IEEE operation a number and no more. A plugin that forgets it would lose the promise in
// silence: so one step is watched, call by call.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace ditto {

// While it lives, every ATen call of this thread, and of backwards that it starts, is held against the SDK's list of
// those that move, compare, or compute each number by one IEEE operation (<ditto/exact/exact_calls.h>). One at a time
// in a thread, which ends it, too.
class OneNumberGuard {
 public:
  OneNumberGuard();
  ~OneNumberGuard();
  OneNumberGuard(const OneNumberGuard&) = delete;
  OneNumberGuard& operator=(const OneNumberGuard&) = delete;

  // Throws Error(config), naming the first call that is not on the list, and the unit or backward function it was in.
  void check() const;

  struct State;

  // While it lives, calls of the thread's guard, if it has one, are not held against the list: their numbers are not
  // used.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    std::shared_ptr<State> state_;
  };

 private:
  std::shared_ptr<State> state_;
  c10::DebugInfoGuard reached_;
  std::uint64_t callback_;
};

}  // namespace ditto
