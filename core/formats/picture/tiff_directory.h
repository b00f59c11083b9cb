// The directories of a TIFF file (TIFF 6.0, BigTIFF), of which EXIF is one: what their entries say, without the pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/formats/file.h"

namespace ditto::formats {

class TiffDirectory {
 public:
  // Nothing: these bytes are no such file. What lies outside of it, or cannot be read, is not there. Keeps a reference.
  static std::optional<TiffDirectory> first(const RandomFile& file);

  bool has(unsigned tag) const { return entries_.count(tag) > 0; }
  // Whole numbers of 16 bits or more, at most 64 of them; none where the entry is not there or is something else.
  std::vector<std::uint64_t> numbers(unsigned tag) const;
  std::optional<std::uint64_t> number(unsigned tag) const;  // the first of them
  std::vector<std::byte> bytes(unsigned tag) const;         // of an entry of bytes
  std::vector<TiffDirectory> inner() const;                 // those that SubIFDs names

 private:
  struct Entry {
    unsigned type;
    std::uint64_t count, value_at;  // the value itself, or its place
  };
  enum class Order { little, big };
  TiffDirectory(const RandomFile& file, Order order, std::size_t place_bytes)
      : file_(&file), order_(order), place_bytes_(place_bytes) {}
  void read(std::uint64_t at);
  std::uint64_t number_in(const std::vector<std::byte>& bytes, std::size_t at, std::size_t size) const;
  std::vector<std::byte> part(std::uint64_t at, std::uint64_t size) const;  // empty: not there
  std::vector<std::byte> value(unsigned tag, std::uint64_t most) const;

  const RandomFile* file_;
  Order order_;
  std::size_t place_bytes_;  // 8 in BigTIFF, else 4
  std::map<unsigned, Entry> entries_;
};

// What a TIFF file is by its first directory and those inside of it. Raw: what a camera's sensor saw (DNG, CR2, and
// whatever has a colour filter's photometric), which no reader of pictures shows; beside it stand thumbnails. Reduced:
// the first picture calls itself a smaller copy of another one (NewSubfileType bit 0).
enum class TiffKind { picture, raw, reduced };
TiffKind tiff_kind(const RandomFile& file);

// For messages: "holds what a camera's sensor saw …". Of `picture`: null.
const char* why_no_picture(TiffKind kind);

}  // namespace ditto::formats
