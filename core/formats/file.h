// Files read and written. Nothing is mapped into memory: a bad sector, or a file that another program cuts meanwhile,
// is an Error with the system's reason, and not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ditto/error.h>

namespace ditto::formats {

// Closes what was opened.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const { return value_; }  // -1: none
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// "is a link to \"x\", and nothing is there"; empty: it is no link, or leads somewhere.
std::string said_of_dangling(const std::string& path);
// Throws Error(config) naming `where` for "~/x" and "file:///x": the system takes them for names in the current folder,
// where a shell or a browser takes them for places. `takes_addresses`: others, as "http://x", are read elsewhere.
void require_plain_path(const std::string& path, std::string_view where, bool takes_addresses = false);
// Throws Error(config) with this remedy where nothing lies at a path.
void require_there(const std::string& path, std::string_view remedy);

// Bytes that lie elsewhere, in a store: read from any number of threads.
class RemoteBytes {
 public:
  virtual ~RemoteBytes() = default;
  virtual std::uint64_t size() const = 0;
  // All of `into`, or Error(data) that begins with `where`.
  virtual void read(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const = 0;
};

// Bytes at known places, read from any number of threads: a regular file's, those in memory, or a store's.
class RandomFile {
 public:
  // Throws Error(kind) naming the path and the system's reason: missing, unreadable, not a regular file.
  static std::shared_ptr<const RandomFile> open(const std::string& path, ErrorKind kind = ErrorKind::data);
  // Of memory that outlives it; `where` names it in messages.
  static std::shared_ptr<const RandomFile> over(std::span<const std::byte> bytes, std::string_view where,
                                                ErrorKind kind = ErrorKind::data);
  // Of a store's; `path` names them in messages.
  static std::shared_ptr<const RandomFile> over(std::shared_ptr<const RemoteBytes> remote, std::string_view path);
  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  // Throws Error(kind) for what cannot be read or is not there any more. `where` names the part in messages; "": the
  // path does.
  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view where = {}) const;
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t bytes, std::string_view where = {}) const;

 private:
  RandomFile(std::string path, ErrorKind kind, Descriptor descriptor, const std::byte* memory, std::uint64_t size)
      : path_(std::move(path)), kind_(kind), descriptor_(std::move(descriptor)), memory_(memory), size_(size) {}
  void require(std::uint64_t offset, std::uint64_t bytes, std::string_view where) const;
  std::string path_;
  ErrorKind kind_;
  Descriptor descriptor_;    // none: it is in memory
  const std::byte* memory_;  // null: it is a file, or remote
  std::uint64_t size_;
  std::shared_ptr<const RemoteBytes> remote_;
};

// All of a file. Throws as RandomFile does, and for one of more than `most` bytes before it is read.
std::string read_file(const std::string& path, ErrorKind kind,
                      std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

// Writes `bytes` to `path` beside the final place and renames, so that a reader sees the old file or the new one. With
// Sync::fsync the bytes are on the disk before the name is theirs; sync_parent makes the name durable too.
enum class Sync { none, fsync };
void write_file(const std::string& path, std::span<const std::byte> bytes, ErrorKind kind, Sync sync = Sync::none);

// Forces a written file, or a folder's entries, to the disk. Error(kind) with the system's reason.
void sync_file(const std::string& path, ErrorKind kind);
// The same for the names in the folder in which `path` is.
void sync_parent(const std::string& path, ErrorKind kind);

}  // namespace ditto::formats
