#include "core/formats/tensor/npz.h"

#include <ditto/error.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <system_error>

namespace ditto::formats {

namespace {

constexpr std::uint64_t kNoTime = 0, kFirstDay = 0x21;  // midnight, 1 January 1980: zip's first
constexpr std::uint64_t kPlain = 20, kZip64 = 45;       // versions of zip that a reader needs
constexpr std::uint64_t kFull = 0xFFFFFFFF;             // zip64 has the number

void put(std::string& to, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(number >> (8 * i));
}

// Sizes or places of more than 32 bits stand in fields of their own.
bool is_large(std::uint64_t number) { return number >= kFull; }

}  // namespace

std::string npy_header(const NpyArray& array) {
  std::string shape;
  for (const auto size : array.shape) shape += std::to_string(size) + (array.shape.size() == 1 ? "," : ", ");
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string text = "{'descr': '" + array.dtype + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t kBefore = 10, kAlign = 64;  // magic, version, length; numbers begin at a multiple of 64
  text.append((kAlign - (kBefore + text.size() + 1) % kAlign) % kAlign, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xFF);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

NpzLayout::NpzLayout(const std::vector<NpyArray>& arrays, const std::vector<std::uint64_t>& bytes, std::string comment)
    : comment_(std::move(comment)) {
  const std::vector<std::uint32_t> any(arrays.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    Entry entry{arrays[i].name + ".npy", npy_header(arrays[i]), directory_at_, 0, 0};
    entry.bytes = entry.header.size() + bytes[i];
    entry.numbers = entry.at + local_header(entry, 0).size();
    directory_at_ = entry.numbers + bytes[i];
    entries_.push_back(std::move(entry));
  }
  file_bytes_ = directory_at_ + directory(any).size();
}

// With the array's own header behind it.
std::string NpzLayout::local_header(const Entry& entry, std::uint32_t crc) const {
  const bool large = is_large(entry.bytes);
  std::string text = "PK\3\4";
  put(text, large ? kZip64 : kPlain, 2);
  put(text, 0, 4);  // no flags; stored
  put(text, kNoTime, 2);
  put(text, kFirstDay, 2);
  put(text, crc, 4);
  for (int i = 0; i < 2; ++i) put(text, large ? kFull : entry.bytes, 4);
  put(text, entry.name.size(), 2);
  put(text, large ? 20 : 0, 2);
  text += entry.name;
  if (large) {
    put(text, 1, 2);
    put(text, 16, 2);
    for (int i = 0; i < 2; ++i) put(text, entry.bytes, 8);
  }
  return text + entry.header;
}

std::string NpzLayout::directory(const std::vector<std::uint32_t>& crcs) const {
  std::string text;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    const bool large = is_large(entry.bytes) || is_large(entry.at);
    text += "PK\1\2";
    for (int version = 0; version < 2; ++version) put(text, large ? kZip64 : kPlain, 2);
    put(text, 0, 4);
    put(text, kNoTime, 2);
    put(text, kFirstDay, 2);
    put(text, crcs[i], 4);
    for (int size = 0; size < 2; ++size) put(text, large ? kFull : entry.bytes, 4);
    put(text, entry.name.size(), 2);
    put(text, large ? 28 : 0, 2);
    put(text, 0, 10);  // no comment, the first disk, no attributes
    put(text, large ? kFull : entry.at, 4);
    text += entry.name;
    if (!large) continue;
    put(text, 1, 2);
    put(text, 24, 2);
    for (const auto number : {entry.bytes, entry.bytes, entry.at}) put(text, number, 8);
  }
  const auto size = text.size();
  const bool large = is_large(directory_at_);
  if (large) {
    text += "PK\6\6";
    put(text, 44, 8);
    for (int version = 0; version < 2; ++version) put(text, kZip64, 2);
    put(text, 0, 8);
    for (int count = 0; count < 2; ++count) put(text, entries_.size(), 8);
    put(text, size, 8);
    put(text, directory_at_, 8);
    text += "PK\6\7";
    put(text, 0, 4);
    put(text, directory_at_ + size, 8);
    put(text, 1, 4);
  }
  text += "PK\5\6";
  put(text, 0, 4);
  for (int count = 0; count < 2; ++count) put(text, entries_.size(), 2);
  put(text, size, 4);
  put(text, large ? kFull : directory_at_, 4);
  put(text, comment_.size(), 2);
  return text + comment_;
}

std::vector<Piece> NpzLayout::around(const std::vector<std::uint32_t>& crcs) const {
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> whole;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    whole.push_back(
        joined_crc32(crc32(std::as_bytes(std::span(entry.header))), crcs[i], entry.bytes - entry.header.size()));
    pieces.emplace_back(entry.at, local_header(entry, whole.back()));
  }
  pieces.emplace_back(directory_at_, directory(whole));
  return pieces;
}

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t joined_crc32(std::uint32_t first, std::uint32_t second, std::uint64_t bytes_of_second) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(bytes_of_second)));
}

void write_npz(const std::string& path, const std::vector<NpyArray>& arrays) {
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint32_t> crcs;
  for (const auto& array : arrays) {
    bytes.push_back(array.bytes.size());
    crcs.push_back(crc32(array.bytes));
  }
  const auto pieces = NpzLayout(arrays, bytes).around(crcs);
  const std::string beside = path + ".tmp-" + std::to_string(::getpid());
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    file << pieces[i].second;
    if (i < arrays.size())
      file.write(reinterpret_cast<const char*>(arrays[i].bytes.data()),
                 static_cast<std::streamsize>(arrays[i].bytes.size()));
  }
  file.close();
  if (file && std::rename(beside.c_str(), path.c_str()) == 0) return;
  const std::string why = std::generic_category().message(errno);
  std::remove(beside.c_str());
  throw Error(ErrorKind::data, path, "cannot be written: " + why);
}

}  // namespace ditto::formats
