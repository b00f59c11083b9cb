// A picture as it lies in memory, and the kinds of files that it comes from.
#pragma once

#include <cstdint>
#include <vector>

namespace ditto::formats {

// Row major, height x width x channels, 0..255; channels is 1 (grey) or 3 (red, green, blue).
struct Picture {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;
};

enum class PictureFormat { png, jpeg, webp, avif, tiff, gif, bmp, unknown };
inline constexpr const char* kPictureFormats = "PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP";  // for messages

}  // namespace ditto::formats
