// Arrays as NumPy's savez leaves them: an uncompressed zip of .npy files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

// What stands at a place of a file.
using Piece = std::pair<std::uint64_t, std::string>;

// Where all of an npz stands whose numbers come one after another, in any order: they are written to their places, and
// what surrounds them at the end. write_npz makes the same bytes.
class NpzLayout {
 public:
  // How many bytes the numbers of each of these arrays take is in `bytes`; those of `arrays` are not looked at.
  // `comment`: the zip's own, of at most 65,535 bytes.
  NpzLayout(const std::vector<NpyArray>& arrays, const std::vector<std::uint64_t>& bytes, std::string comment = {});
  std::uint64_t begin(std::size_t array) const { return entries_[array].numbers; }  // of its numbers
  std::uint64_t file_bytes() const { return file_bytes_; }
  // All but the numbers. `crcs`: crc32 of each array's numbers.
  std::vector<Piece> around(const std::vector<std::uint32_t>& crcs) const;

 private:
  struct Entry {
    std::string name, header;
    std::uint64_t at, numbers, bytes;  // of the entry, of its numbers; of header and numbers
  };
  std::string local_header(const Entry& entry, std::uint32_t crc) const;
  std::string directory(const std::vector<std::uint32_t>& crcs) const;
  std::vector<Entry> entries_;
  std::string comment_;
  std::uint64_t directory_at_ = 0, file_bytes_ = 0;
};

// As zip has it; `before`: that of what stands before these bytes.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
// Of bytes whose crc is `first`, and after them so many whose crc is `second`.
std::uint32_t joined_crc32(std::uint32_t first, std::uint32_t second, std::uint64_t bytes_of_second);

}  // namespace ditto::formats
