#include "core/formats/tensorboard/tfrecord.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "core/formats/limits.h"

namespace ditto::formats {

namespace {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::uint64_t number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  while (!bytes.empty()) {  // the library takes lengths of 31 bits
    const std::string_view part = bytes.substr(0, std::size_t{1} << 30);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(part.data()));
    crc = crc32_iscsi(data, static_cast<int>(part.size()), crc);
    bytes.remove_prefix(part.size());
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string tfrecord(std::string_view record) {
  std::string out = little_endian(std::uint64_t{record.size()});
  out += little_endian(masked_crc32c(out));
  out += record;
  return out += little_endian(masked_crc32c(record));
}

std::string next_tfrecord(std::string_view file, std::uint64_t& at, std::string_view& record) {
  const auto place = " at byte " + std::to_string(at);
  const std::string_view rest = file.substr(at);
  if (rest.size() < 12) return "a record's head is cut off" + place;
  if (masked_crc32c(rest.substr(0, 8)) != number(rest.substr(8, 4)))
    return "a record's length has a wrong checksum" + place;
  const std::uint64_t length = number(rest.substr(0, 8));
  if (length > limits::kEventBytes) return "a record has " + std::to_string(length) + " bytes, over 64 MiB," + place;
  if (rest.size() - 12 < length + 4) return "a record is cut off" + place;
  record = rest.substr(12, length);
  if (masked_crc32c(record) != number(rest.substr(12 + length, 4))) return "a record has a wrong checksum" + place;
  at += 12 + length + 4;
  return {};
}

}  // namespace ditto::formats
