// EXIF 2.32 (CIPA DC-008): a small TIFF file in a segment or chunk of its own.
#include "core/formats/exif.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ditto::formats {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kJpegPrefix("Exif\0\0", 6);
constexpr unsigned kOrientationTag = 0x0112, kShort = 3;

enum class Order { little, big };

std::uint64_t number(Bytes bytes, std::size_t at, std::size_t size, Order order) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + (order == Order::big ? i : size - 1 - i)]);
  return value;
}

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), reinterpret_cast<const char*>(bytes.data()));
}

Bytes without_prefix(Bytes exif) { return starts_with(exif, kJpegPrefix) ? exif.subspan(kJpegPrefix.size()) : exif; }

// The segments before the pixels: FF, a type, a length that counts itself.
Bytes exif_of_jpeg(Bytes file) {
  constexpr unsigned kApp1 = 0xE1, kScan = 0xDA, kEnd = 0xD9;
  for (std::size_t at = 2; at + 4 <= file.size() && file[at] == std::byte{0xFF};) {
    const auto type = std::to_integer<unsigned>(file[at + 1]);
    if (type == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    const auto length = static_cast<std::size_t>(number(file, at + 2, 2, Order::big));
    if (type == kScan || type == kEnd || length < 2 || length > file.size() - at - 2) break;
    const Bytes body = file.subspan(at + 4, length - 2);
    if (type == kApp1 && starts_with(body, kJpegPrefix)) return without_prefix(body);
    at += 2 + length;
  }
  return {};
}

// PNG's chunks have the length before the type and a checksum behind; RIFF's, below, the type first, and even lengths.
Bytes exif_of_png(Bytes file) {
  for (std::size_t at = 8; at + 12 <= file.size();) {
    const auto length = number(file, at, 4, Order::big);
    if (length > file.size() - at - 12) break;
    const Bytes body = file.subspan(at + 8, length);
    if (starts_with(file.subspan(at + 4), "eXIf")) return without_prefix(body);
    at += 12 + length;
  }
  return {};
}

Bytes exif_of(Bytes file, PictureFormat format) {
  switch (format) {
    case PictureFormat::jpeg: return exif_of_jpeg(file);
    case PictureFormat::png: return exif_of_png(file);
    case PictureFormat::webp: return without_prefix(webp_chunk(file, "EXIF"));
    default: break;
  }
  return {};
}

// The first directory's entries: tag, type, count, and a value of four bytes.
int orientation_in(Bytes tiff) {
  const bool little = starts_with(tiff, std::string_view("II*\0", 4));
  if (tiff.size() < 8 || (!little && !starts_with(tiff, std::string_view("MM\0*", 4)))) return 1;
  const Order order = little ? Order::little : Order::big;
  const auto directory = number(tiff, 4, 4, order);
  if (directory > tiff.size() - 2) return 1;
  const auto entries = number(tiff, directory, 2, order);
  for (std::uint64_t i = 0, at = directory + 2; i < entries && at + 12 <= tiff.size(); ++i, at += 12) {
    if (number(tiff, at, 2, order) != kOrientationTag || number(tiff, at + 2, 2, order) != kShort) continue;
    const auto value = number(tiff, at + 8, 2, order);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace

Bytes webp_chunk(Bytes file, std::string_view type) {
  for (std::size_t at = 12; at + 8 <= file.size();) {
    const auto length = number(file, at + 4, 4, Order::little);
    if (length > file.size() - at - 8) break;
    if (starts_with(file.subspan(at), type)) return file.subspan(at + 8, length);
    at += 8 + length + length % 2;
  }
  return {};
}

int orientation_of(Bytes file, PictureFormat format) { return orientation_in(exif_of(file, format)); }

bool swaps_sides(int orientation) { return orientation >= 5; }

Picture upright(Picture stored, int orientation) {
  if (orientation == 1) return stored;
  const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Picture out{stored.width, stored.height, stored.channels, {}};
  if (swaps_sides(orientation)) std::swap(out.width, out.height);
  if (stored.pixels.empty()) return out;  // a header
  out.pixels.resize(stored.pixels.size());
  std::uint8_t* to = out.pixels.data();
  for (int v = 0; v < out.height; ++v)
    for (int u = 0; u < out.width; ++u) {
      int x = u, y = v;
      if (swaps_sides(orientation)) std::swap(x, y);
      if (flip_x) x = stored.width - 1 - x;
      if (flip_y) y = stored.height - 1 - y;
      const auto from = (static_cast<std::ptrdiff_t>(y) * stored.width + x) * stored.channels;
      to = std::copy_n(stored.pixels.data() + from, stored.channels, to);
    }
  return out;
}

}  // namespace ditto::formats
