// Blocks of GPU threads as fibers of one thread of this process, for plugins/kernels/cuda/device.h.
//
// A fiber runs until it waits for others: at a barrier for all of its block, at an exchange for its warp. Which of
// those that can go on does so next is drawn from the order's number, as is which block comes next. Shared memory is
// new for each block, full of nans, and ends where it ends, which AddressSanitizer sees. To ThreadSanitizer each fiber
// is a thread, and of a launch only barriers order them (and threads of one number in two blocks): exchanges do not, so
// that what lacks a barrier on a GPU is a race here. emulated.cpp itself is compiled without sanitizers, and told of
// the program's: EMULATED_TSAN, EMULATED_ASAN.
//
// A block that no GPU launches, and threads that wait for others which never come, end the program with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace emulated {

struct Launch {
  std::int64_t blocks_x, blocks_y;
  int threads;
  std::size_t shared;  // bytes of a block
  void* stream = nullptr;
};
void run(const Launch& launch, const std::function<void()>& body);

// The memory that kernels work in, open to them for as long as one runs: of tests all is (memory.cpp), of a mock GPU
// nothing else (tests/mock_gpu/kernels).
class Memory {
 public:
  explicit Memory(void* stream);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  std::shared_ptr<void> open_;
};

void set_order(unsigned order);  // 0: threads and blocks in the order of their numbers
std::uint64_t launches();        // so far

// Of the fiber that runs:
struct Place {
  int thread, threads, block_x, block_y, blocks_x;
};
const Place& here();
char* shared();
void barrier();
std::uint32_t exchange(std::uint32_t mine, int from_lane);
std::uint32_t ballot(bool yes);

}  // namespace emulated
