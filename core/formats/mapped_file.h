// A file seen as bytes, read only. Used by every reader of large files here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ditto/error.h>

namespace ditto::formats {

// Maps a whole regular file. The mapping lives as long as this object; share it by shared_ptr with whatever points
// into it. A file that another program shortens while it is mapped is not guarded against.
class MappedFile {
 public:
  // Throws Error(kind) naming the path and the system's reason: missing, unreadable, not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path, ErrorKind kind);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(std::string path, const std::byte* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_;
  std::size_t size_;
};

// Writes `bytes` to `path` beside the final place and renames, so that a reader sees the old file or the new one.
enum class Sync { none, fsync };
void write_file(const std::string& path, std::span<const std::byte> bytes, ErrorKind kind, Sync sync = Sync::none);

// Forces a written file, or a folder's entries, to the disk. Error(kind) with the system's reason.
void sync_file(const std::string& path, ErrorKind kind);

}  // namespace ditto::formats
