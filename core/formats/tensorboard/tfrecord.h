// The framing of a TensorBoard file: length (8 bytes), its checksum (4), the record, its checksum (4), all little
// endian. A checksum is the CRC-32C, rotated and offset so that a checksum of checksums is no accident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ditto::formats {

std::uint32_t masked_crc32c(std::string_view bytes);

std::string tfrecord(std::string_view record);

// Takes the record that starts at byte `at` and moves `at` behind it. Returns what is wrong, or "".
std::string next_tfrecord(std::string_view file, std::uint64_t& at, std::string_view& record);

}  // namespace ditto::formats
