// The element types that weight files know.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ditto::formats {

// In ascending order of the reference's own list: its writer lays tensors out from the last to the first.
enum class Dtype : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

std::string_view dtype_name(Dtype dtype);                     // "F32", as safetensors writes it
std::optional<Dtype> dtype_from_name(std::string_view name);  // none: unknown
unsigned dtype_bits(Dtype dtype);                             // bits of one element: 4, 6, 8, 16, 32, 64

}  // namespace ditto::formats
