#include "core/formats/tensor/safetensors.h"

#include <algorithm>
#include <stdexcept>

#include <ditto/options.h>

#include "core/formats/limits.h"
#include "core/formats/tensor/safetensors_header.h"

namespace ditto::formats {

namespace {

constexpr std::uint64_t kLengthBytes = 8;

// Every byte after the header belongs to one tensor.
void check_cover(const std::vector<HeaderTensor>& tensors, std::uint64_t data_bytes, std::string_view where,
                 ErrorKind kind) {
  std::uint64_t at = 0;
  for (const HeaderTensor& tensor : tensors) {
    if (tensor.begin != at)
      throw Error(kind, where,
                  "tensor '" + tensor.name + "': its data begins at byte " + std::to_string(tensor.begin) +
                      " of the data, and the tensor before it ends at " + std::to_string(at));
    at = tensor.end;
  }
  if (at > data_bytes)
    throw Error(kind, where,
                "tensors need " + std::to_string(at) + " bytes of data, and the file has " + std::to_string(data_bytes),
                "the file was cut off");
  if (at < data_bytes)
    throw Error(kind, where, std::to_string(data_bytes - at) + " bytes at the end belong to no tensor");
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::span<const std::byte> beginning, std::uint64_t file_bytes,
                                       std::string_view where, ErrorKind kind) {
  if (file_bytes < kLengthBytes)
    throw Error(kind, where, "the file has " + std::to_string(file_bytes) + " bytes; a safetensors file has 8 or more",
                "it was cut off, or is something else");
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(beginning[i]);
  if (length > limits::kHeaderBytes)
    throw Error(kind, where, "the header's length " + std::to_string(length) + " is over 100,000,000",
                "this is not a safetensors file, or it is damaged");
  if (length > file_bytes - kLengthBytes)
    throw Error(kind, where,
                "the header's length is " + std::to_string(length) + ", but only " +
                    std::to_string(file_bytes - kLengthBytes) + " bytes follow",
                "the file was cut off");
  return kLengthBytes + length;
}

SafetensorsReader SafetensorsReader::open(const std::string& path, ErrorKind kind) {
  auto file = RandomFile::open(path, kind);
  const auto length = file->read(0, std::min(file->size(), kLengthBytes));
  const auto header = file->read(0, safetensors_header_bytes(length, file->size(), path, kind));
  SafetensorsReader reader = parse(header, file->size(), path, kind);
  reader.file_ = std::move(file);
  return reader;
}

SafetensorsReader SafetensorsReader::parse(std::span<const std::byte> file, std::string_view where, ErrorKind kind) {
  SafetensorsReader reader = parse(file, file.size(), where, kind);
  reader.file_ = RandomFile::over(file, where, kind);
  return reader;
}

SafetensorsReader SafetensorsReader::parse(std::span<const std::byte> beginning, std::uint64_t file_bytes,
                                           std::string_view where, ErrorKind kind) {
  const std::uint64_t begin = safetensors_header_bytes(beginning, file_bytes, where, kind);
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()) + kLengthBytes, begin - kLengthBytes);
  Header header = parse_safetensors_header(text, where, kind);
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_cover(header.tensors, file_bytes - begin, where, kind);

  SafetensorsReader reader;
  reader.where_ = where;
  reader.kind_ = kind;
  reader.metadata_ = std::move(header.metadata);
  reader.entries_.reserve(header.tensors.size());
  for (HeaderTensor& tensor : header.tensors) {
    reader.by_name_.emplace(tensor.name, reader.entries_.size());
    const std::uint64_t bytes = tensor.end - tensor.begin;
    reader.entries_.push_back(
        {std::move(tensor.name), tensor.dtype, std::move(tensor.shape), begin + tensor.begin, bytes});
  }
  return reader;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::span<std::byte> into) const {
  if (!file_ || into.size() != entry.bytes) throw std::logic_error("SafetensorsReader: no file, or another size");
  file_->read(entry.offset, into, where_ + ": tensor '" + entry.name + "'");
}

std::vector<std::byte> SafetensorsReader::read(const SafetensorsEntry& entry) const {
  std::vector<std::byte> data(entry.bytes);
  read(entry, data);
  return data;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::uint64_t at, std::span<std::byte> into) const {
  if (!file_ || at > entry.bytes || into.size() > entry.bytes - at)
    throw std::logic_error("SafetensorsReader: no file, or beyond the entry's end");
  file_->read(entry.offset + at, into, where_ + ": tensor '" + entry.name + "'");
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsReader::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries_) names.push_back(entry.name);
  const std::string near = nearest(name, names);
  throw Error(kind_, where_, "it has no tensor '" + std::string(name) + "'",
              near.empty() ? std::string() : "the nearest name in it is '" + near + "'");
}

}  // namespace ditto::formats
