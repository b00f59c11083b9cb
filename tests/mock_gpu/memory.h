// A mock GPU's memory: of the host, but closed to it. A program that reads or writes it without asking the GPU to do so
// dies by SIGSEGV, with a line that says of what.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <optional>
#include <set>

#include <ditto/visibility.h>

#include "tests/mock_gpu/order.h"

namespace mock_gpu {

inline constexpr auto kDevice = c10::DeviceType::CUDA;

// Of one storage; pages of its own.
struct Block {
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  c10::DeviceIndex gpu = 0;
  StreamId home = 0;            // the stream that was current when it was made
  std::set<StreamId> recorded;  // by record_stream
  int open = 0;                 // how many threads use its numbers now
  Uses uses;
};

c10::DeviceAllocator& memory();
c10::Allocator& pinned_memory();
bool is_pinned(const void* at);

// Of a tensor's storage; null where it lies on the host, or is empty.
Block* block_of(const at::Tensor& tensor);
// The bytes between a tensor's first and last number; none where it has no block.
std::optional<Access> access(const at::Tensor& tensor, bool writes);

// A block that this thread may read and write while this lives.
class Open {
 public:
  explicit Open(Block* block);
  explicit Open(const at::Tensor& tensor) : Open(block_of(tensor)) {}
  ~Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  Block* block_;
};

// While it lives, this thread is a GPU's kernel, which has no list of what it reads and writes: a block that it touches
// is open to it from then on. One launch of a stream, whose order with other streams nobody checks.
class DITTO_API Kernel {
 public:
  explicit Kernel(void* stream);  // a handle that the device's streams give
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
};

}  // namespace mock_gpu
