// Bytes that a process has from malloc, as they rise and fall: an LD_PRELOAD library (bench/memory.py builds and loads
// it), so that programs in any language are measured by one tool. glibc only; what is mapped by hand is not counted.
//
// $ALLOCATIONS.PID gets a line of numbers, 64 bits each: how many follow, then the bytes in use, whenever they have
// moved by 256 KiB since the last.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

constexpr long kGrain = 256 << 10, kRoom = 8 << 20;

std::atomic<long> used{0}, written{0};
std::atomic<long>* series = nullptr;
pid_t owner = 0;  // a child that has forked shares the file, and is not measured

// A file that is mapped, so that it is whole however the process ends.
__attribute__((constructor)) void open_series() {
  const char* prefix = std::getenv("ALLOCATIONS");
  if (!prefix) return;
  char path[4096];
  std::snprintf(path, sizeof path, "%s.%d", prefix, static_cast<int>(getpid()));
  const int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  const size_t bytes = (kRoom + 1) * sizeof(long);
  if (file < 0 || ftruncate(file, bytes) != 0) return;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  owner = getpid();
  series = static_cast<std::atomic<long>*>(mapped);
}

void move(long bytes) {
  const long now = used.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  long before = written.load(std::memory_order_relaxed);
  if (!series || std::labs(now - before) < kGrain || getpid() != owner) return;
  if (!written.compare_exchange_strong(before, now, std::memory_order_relaxed)) return;  // another thread tells
  const long at = series[0].fetch_add(1, std::memory_order_relaxed);
  if (at < kRoom) series[1 + at].store(now, std::memory_order_relaxed);
}

void* counted(void* block) {
  if (block) move(static_cast<long>(malloc_usable_size(block)));
  return block;
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) { return counted(__libc_malloc(bytes)); }
void* calloc(size_t count, size_t bytes) { return counted(__libc_calloc(count, bytes)); }
void* memalign(size_t alignment, size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(size_t alignment, size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  void* block = memalign(alignment, bytes);
  if (!block) return ENOMEM;
  *out = block;
  return 0;
}
void* realloc(void* block, size_t bytes) {
  const long before = block ? static_cast<long>(malloc_usable_size(block)) : 0;
  void* moved = __libc_realloc(block, bytes);
  if (moved || bytes == 0) move((moved ? static_cast<long>(malloc_usable_size(moved)) : 0) - before);
  return moved;
}
void free(void* block) {
  if (block) move(-static_cast<long>(malloc_usable_size(block)));
  __libc_free(block);
}
}
