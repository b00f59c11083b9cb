// safetensors files: a strict reader by position, and a streaming writer that lays bytes out as the reference
// library does (equal tensors and metadata give an equal file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ditto/error.h>

#include <ditto/formats/file.h>
#include "dtype.h"

namespace ditto::formats {

using Metadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;  // any UTF-8 text without control characters; never to be used as a path
  Dtype dtype;
  std::vector<std::int64_t> shape;  // at most 64 dims; {} is a scalar; zeros are allowed
  std::uint64_t offset;             // of the first byte, from the start of the file
  std::uint64_t bytes;              // as stored: little endian, row major
};

// What a file's header says. Refuses, with Error(kind) naming the file and the tensor: a header that is cut off, over
// 100,000,000 bytes, not UTF-8 JSON or nested over 128 deep; a name twice (the reference lets the last one win);
// control characters in a name; unknown dtypes; more than 64 dims; products that overflow; sizes that do not fit dtype
// and shape; bytes that overlap, are missing, or are left over. Unknown extra fields of a tensor are ignored.
class SafetensorsReader {
 public:
  // `kind` is what a broken file means to the caller: checkpoint, or data.
  static SafetensorsReader open(const std::string& path, ErrorKind kind = ErrorKind::checkpoint);
  // From bytes in memory, which must outlive the reader; `where` names them in messages.
  static SafetensorsReader parse(std::span<const std::byte> file, std::string_view where,
                                 ErrorKind kind = ErrorKind::checkpoint);
  // From a file's beginning, which holds its whole header, and the size of all of it. Has no data
  // to read.
  static SafetensorsReader parse(std::span<const std::byte> beginning, std::uint64_t file_bytes, std::string_view where,
                                 ErrorKind kind = ErrorKind::checkpoint);

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their bytes
  const SafetensorsEntry* find(std::string_view name) const;                 // null: not there
  const SafetensorsEntry& at(std::string_view name) const;                   // Error(kind) with the nearest name
  const Metadata& metadata() const { return metadata_; }
  const std::string& where() const { return where_; }
  // An entry's data; `into` has its size. Error(kind) for what cannot be read.
  void read(const SafetensorsEntry& entry, std::span<std::byte> into) const;
  std::vector<std::byte> read(const SafetensorsEntry& entry) const;
  // Some of it: as many bytes as `into` has, from byte `at` of the entry on.
  void read(const SafetensorsEntry& entry, std::uint64_t at, std::span<std::byte> into) const;

 private:
  SafetensorsReader() = default;
  std::string where_;
  ErrorKind kind_ = ErrorKind::checkpoint;
  std::shared_ptr<const RandomFile> file_;  // null: it has none
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  Metadata metadata_;
};

// How many bytes of a file come before its tensors': looks at no more than the first 8. Refuses what the reader would.
std::uint64_t safetensors_header_bytes(std::span<const std::byte> beginning, std::uint64_t file_bytes,
                                       std::string_view where, ErrorKind kind = ErrorKind::checkpoint);

struct TensorDeclaration {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
};

// Writes the header at once, then tensors' bytes in any order and in pieces. Writes straight to `path`: a caller who
// needs all or nothing writes beside the final place and renames. Throws Error(kind) with the path and the system's
// reason (disk full, …), for a name declared twice, and for shapes that overflow.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorDeclaration> tensors, const Metadata& metadata = {},
                    ErrorKind kind = ErrorKind::checkpoint);
  ~SafetensorsWriter();  // closes; an unfinished file stays as it is, incomplete
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // `bytes` of tensor `name` from byte `at` on (of that tensor). Assertion-like misuse (unknown name, past the end)
  // throws std::logic_error.
  void write(std::string_view name, std::span<const std::byte> bytes, std::uint64_t at = 0);
  // Checks that every byte was given once (by count), flushes, closes. With Sync::fsync the bytes are on the disk
  // after.
  void finish(Sync sync = Sync::none);

  std::uint64_t file_bytes() const { return file_bytes_; }
  // The names in the order of their bytes: the fastest order to write in.
  std::vector<std::string> order() const;

 private:
  struct Slot;
  void put(std::span<const std::byte> bytes, std::uint64_t offset);
  std::string path_;
  ErrorKind kind_;
  int descriptor_ = -1;
  std::uint64_t file_bytes_ = 0;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

// The header's bytes (length, JSON, padding) for these tensors, in the reference's order.
std::string safetensors_header(const std::vector<TensorDeclaration>& tensors, const Metadata& metadata);

}  // namespace ditto::formats
