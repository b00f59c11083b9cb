#include "core/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ditto::formats {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

[[noreturn]] void fail(const std::string& path, ErrorKind kind, const char* doing) {
  throw Error(kind, path, std::string("cannot be ") + doing + ": " + std::strerror(errno));
}

void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path, ErrorKind kind) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path, kind, "written");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, ErrorKind kind) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(path, kind, "opened");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, kind, "read");
  if (!S_ISREG(status.st_mode)) throw Error(kind, path, "is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) fail(path, kind, "mapped");
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
}

void write_file(const std::string& path, std::span<const std::byte> bytes, ErrorKind kind, Sync sync) {
  const std::string beside = path + ".tmp-" + std::to_string(::getpid());
  Descriptor file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) fail(beside, kind, "created");
  try {
    write_all(file.get(), bytes, beside, kind);
    if (sync == Sync::fsync && ::fsync(file.get()) != 0) fail(beside, kind, "synced to disk");
    if (::close(file.release()) != 0) fail(beside, kind, "written");
    if (::rename(beside.c_str(), path.c_str()) != 0) fail(path, kind, "replaced");
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
}

void sync_file(const std::string& path, ErrorKind kind) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(path, kind, "opened");
  if (::fsync(file.get()) != 0) fail(path, kind, "synced to disk");
}

}  // namespace ditto::formats
