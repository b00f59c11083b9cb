// Mock GPUs as LibTorch's device type CUDA: how many there are, which is a thread's own, and their streams.
#pragma once

#include <c10/core/Device.h>

#include "tests/mock_gpu/order.h"

namespace mock_gpu {

Order& order();

int gpus();                                     // MOCK_GPUS, 8 where that is not set
c10::DeviceIndex current_gpu();                 // of this thread, as CUDA's: the first one until it chooses
StreamId current_stream(c10::DeviceIndex gpu);  // of this thread
// What code that is not LibTorch's knows a stream by; null is the current one.
void* handle_of(StreamId stream);
StreamId stream_of(void* handle);
StreamId stream_of_collectives(c10::DeviceIndex gpu);

// Another GPU of this thread's, while this lives.
class OnGpu {
 public:
  explicit OnGpu(c10::DeviceIndex gpu);  // -1: the current one
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  c10::DeviceIndex before_;
};

// The host waits for all that was launched in a stream, and counts it.
void wait_for(StreamId stream);

}  // namespace mock_gpu
