// Arrays as NumPy's savez leaves them: an uncompressed zip of .npy files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ditto::formats {

struct NpyArray {
  std::string name;   // "arr_0"
  std::string dtype;  // as NumPy writes it: "|u1", "<i8"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row major
};

// What stands before an array's numbers in a .npy file of format 1.0.
std::string npy_header(const NpyArray& array);

// In this order. Written beside `path` and renamed; the bytes depend on nothing but the arguments. Error(data).
void write_npz(const std::string& path, const std::vector<NpyArray>& arrays);

}  // namespace ditto::formats
