// A thread beside the one that trains, for what that has not to wait for.
#pragma once

#include <functional>
#include <memory>

#include <torch/types.h>

namespace ditto {

// It does one thing at a time as its owner's thread would: with as many of LibTorch's threads, with the modes and
// watchers that LibTorch keeps by thread (gradients, memory), and on its device. On a GPU in a stream of its own, after
// what the owner has queued before. All methods are the owner's, from one thread.
class SideThread {
 public:
  explicit SideThread(torch::Device device);  // the run's
  ~SideThread();                              // waits for what it does
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  void begin(std::function<void()> work);  // once what came before is done
  bool is_at_work() const;
  void wait();    // until nothing is done; on a GPU what the owner queues from now on comes after it
  void finish();  // waits, and throws, once, what the work threw
  // The owner uses from now on, in its own stream, a tensor that the work has made: its memory stays as long.
  void take_over(const torch::Tensor& tensor) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditto
