// Under run.numerics = "one" ops compute with exact rows alone; what models, objectives and backward ask of LibTorch
// beside them may be one IEEE operation a number and no more. A plugin that forgets it would lose the promise in
// silence: so one step is watched, call by call.
#pragma once

#include <cstdint>

namespace ditto {

// While it lives, every ATen call of this thread, and of backwards that it starts, is held against a list of those that
// move, compare, or compute each number by one IEEE operation. Calls on floating-point tensors with numbers count, meta
// tensors do not. One at a time in a process.
class OneNumberGuard {
 public:
  OneNumberGuard();
  ~OneNumberGuard();
  OneNumberGuard(const OneNumberGuard&) = delete;
  OneNumberGuard& operator=(const OneNumberGuard&) = delete;

  // Throws Error(config), naming the first call that is not on the list, and the unit or backward function it was in.
  void check() const;

  // While it lives, this thread's calls are not held against the list: their numbers are not used.
  class Pause {
   public:
    Pause() { ++depth_; }
    ~Pause() { --depth_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    static bool is_on() { return depth_ > 0; }

   private:
    static thread_local int depth_;
  };

 private:
  std::uint64_t callback_;
};

}  // namespace ditto
