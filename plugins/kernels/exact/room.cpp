#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "kernels.h"

namespace ditto_exact {

namespace {
constexpr std::size_t kLine = 64, kPage = std::size_t{1} << 21;

struct Held {
  ~Held() { std::free(memory); }
  float* memory = nullptr;
  std::size_t bytes = 0;
};
}  // namespace

float* room(Room which, Index floats) {
  thread_local Held rooms[static_cast<int>(Room::count)];
  Held& held = rooms[static_cast<int>(which)];
  const std::size_t bytes = (static_cast<std::size_t>(floats) + 1) * sizeof(float);
  if (held.bytes < bytes) {
    const std::size_t align = bytes < kPage ? kLine : kPage, whole = (bytes + align - 1) / align * align;
    std::free(held.memory);
    held.bytes = 0;
    held.memory = static_cast<float*>(std::aligned_alloc(align, whole));
    if (!held.memory) throw std::bad_alloc();
    if (align == kPage) madvise(held.memory, whole, MADV_HUGEPAGE);  // panels are read from many places at once
    held.bytes = whole;
  }
  return held.memory;
}

}  // namespace ditto_exact
