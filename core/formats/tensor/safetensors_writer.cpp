#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/formats/tensor/safetensors.h"
#include "core/formats/tensor/safetensors_header.h"

namespace ditto::formats {

struct SafetensorsWriter::Slot {
  std::string name;
  std::uint64_t offset;  // in the file
  std::uint64_t bytes;
  std::uint64_t written = 0;
};

namespace {

// The reference's order: the largest dtype first, names within it.
std::vector<TensorDeclaration> in_file_order(std::vector<TensorDeclaration> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  return tensors;
}

std::string json_text(const std::string& text, ErrorKind kind) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(kind, {}, "a name or metadata for a safetensors file is not UTF-8");
  }
}

std::string header_of(const std::vector<TensorDeclaration>& ordered, const Metadata& metadata, ErrorKind kind) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      text += (text.back() == '{' ? "" : ",") + json_text(key, kind) + ":" + json_text(value, kind);
    text += "}";
  }
  std::uint64_t at = 0;
  for (const TensorDeclaration& tensor : ordered) {
    const std::uint64_t end = at + tensor_bytes(tensor.dtype, tensor.shape, tensor.name, kind);
    std::string shape;
    for (const std::int64_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    text += (text.size() == 1 ? "" : ",") + json_text(tensor.name, kind) + ":{\"dtype\":\"" +
            std::string(dtype_name(tensor.dtype)) + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
            std::to_string(at) + "," + std::to_string(end) + "]}";
    at = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

// Refuses what the reader would.
void check_names(const std::vector<TensorDeclaration>& ordered, const std::string& path, ErrorKind kind) {
  std::vector<std::string_view> names;
  for (const TensorDeclaration& tensor : ordered) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error(kind, path, "tensor '" + std::string(*twice) + "' would be written twice");
  for (const std::string_view name : names) {
    const bool bad =
        std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
    if (bad || name == "__metadata__") throw Error(kind, path, "no tensor may be named '" + std::string(name) + "'");
  }
}

}  // namespace

std::string safetensors_header(const std::vector<TensorDeclaration>& tensors, const Metadata& metadata) {
  return header_of(in_file_order(tensors), metadata, ErrorKind::checkpoint);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorDeclaration> tensors,
                                     const Metadata& metadata, ErrorKind kind)
    : path_(path), kind_(kind) {
  tensors = in_file_order(std::move(tensors));
  check_names(tensors, path, kind);
  const std::string header = header_of(tensors, metadata, kind);
  file_bytes_ = header.size();
  for (TensorDeclaration& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape, path + ": tensor '" + tensor.name + "'", kind);
    by_name_.emplace(tensor.name, slots_.size());
    slots_.push_back({std::move(tensor.name), file_bytes_, bytes});
    file_bytes_ += bytes;
  }
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw Error(kind, path, std::string("cannot be created: ") + std::strerror(errno));
  try {
    put(std::as_bytes(std::span(header)), 0);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SafetensorsWriter::put(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw Error(kind_, path_, std::string("cannot be written: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes, std::uint64_t at) {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) throw std::logic_error("SafetensorsWriter: undeclared tensor " + std::string(name));
  Slot& slot = slots_[found->second];
  if (at > slot.bytes || bytes.size() > slot.bytes - at)
    throw std::logic_error("SafetensorsWriter: past the end of tensor " + std::string(name));
  put(bytes, slot.offset + at);
  slot.written += bytes.size();
}

void SafetensorsWriter::finish(Sync sync) {
  for (const Slot& slot : slots_)
    if (slot.written != slot.bytes)
      throw std::logic_error("SafetensorsWriter: tensor " + slot.name + " has " + std::to_string(slot.bytes) +
                             " bytes, " + std::to_string(slot.written) + " were written");
  const auto fail = [&](const char* doing) {
    throw Error(kind_, path_, std::string("cannot be ") + doing + ": " + std::strerror(errno));
  };
  if (sync == Sync::fsync && ::fsync(descriptor_) != 0) fail("synced to disk");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("written");
}

std::vector<std::string> SafetensorsWriter::order() const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_) names.push_back(slot.name);
  return names;
}

}  // namespace ditto::formats
