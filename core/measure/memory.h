// How much memory tensors take.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/types.h>

namespace ditto::report {

// Bytes of tensors' storages on one device. On the CPU it counts what threads that watch it allocate (backward's and
// the transport's threads inherit that from the one that calls them), until it is freed, by whichever thread; on the
// meta device what storages would take if they had numbers; on an accelerator it asks the allocator.
class MemoryMeter {
 public:
  // The process's first on the CPU and on meta puts its allocator before LibTorch's own: what is allocated from then on
  // has an owner.
  explicit MemoryMeter(torch::Device device = torch::kCPU);
  ~MemoryMeter();
  int64_t current() const;  // bytes now; on the CPU and on meta: since the first watch
  int64_t peak() const;     // most of them since the last reset
  void reset_peak();        // peak = current

  // Stands on the stack of a thread that makes tensors, as long as it does.
  class Watch {
   public:
    explicit Watch(const MemoryMeter& meter);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    struct Guard;
    std::unique_ptr<Guard> guard_;
  };

 private:
  struct Count;
  torch::Device device_;
  std::shared_ptr<Count> count_;
};

}  // namespace ditto::report
