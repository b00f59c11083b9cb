// Loaded before the C library (LD_PRELOAD): makes one read of a program fail as on a disk with a bad sector, or a file
// shorter while the program reads.
//
// BAD_DISK_UNDER: counts reads of files whose path has this in it. BAD_DISK_AT: the number of the read that fails with
// EIO, from 1. BAD_DISK_CUT: after that read, which then does not fail, this file is cut to 1 byte. BAD_DISK_COUNT: a
// file that gets the number of such reads when the program ends.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<int> reads{0};

bool strikes(int descriptor) {
  const char *under = std::getenv("BAD_DISK_UNDER"), *at = std::getenv("BAD_DISK_AT");
  if (under == nullptr || at == nullptr) return false;
  char link[40], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = ::readlink(link, path, sizeof path - 1);
  if (size < 0) return false;
  path[size] = '\0';
  if (std::strstr(path, under) == nullptr || ++reads != std::atoi(at)) return false;
  if (std::getenv("BAD_DISK_CUT") != nullptr) return false;
  errno = EIO;
  return true;
}

// After each read: that of the number has just been made.
void cut() {
  static std::atomic<bool> is_cut{false};
  const char *file = std::getenv("BAD_DISK_CUT"), *at = std::getenv("BAD_DISK_AT");
  if (file == nullptr || at == nullptr || reads < std::atoi(at) || is_cut.exchange(true)) return;
  (void)!::truncate(file, 1);
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Tell {
  ~Tell() {
    const char* path = std::getenv("BAD_DISK_COUNT");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file, "%d\n", reads.load());
    std::fclose(file);
  }
} tell;

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t read(int descriptor, void* into, size_t size) {
  static auto* const call = real<ssize_t(int, void*, size_t)>("read");
  const ssize_t got = strikes(descriptor) ? -1 : call(descriptor, into, size);
  cut();
  return got;
}

extern "C" __attribute__((visibility("default"))) ssize_t pread(int descriptor, void* into, size_t size, off_t offset) {
  static auto* const call = real<ssize_t(int, void*, size_t, off_t)>("pread");
  const ssize_t got = strikes(descriptor) ? -1 : call(descriptor, into, size, offset);
  cut();
  return got;
}

extern "C" __attribute__((visibility("default"))) ssize_t pread64(int descriptor, void* into, size_t size,
                                                                  off_t offset) {
  return pread(descriptor, into, size, offset);
}
