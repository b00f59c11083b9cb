// One decoder a format. Each gives the pixels as stored (1 or 3 channels, transparency over white), or, asked for the
// header alone, the sizes without pixels. Errors are Error(data) naming `where`. Colours are sRGB's (picture_colour.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/formats/picture/pixels.h"

namespace ditto::formats {

enum class Want { header, pixels };

struct Encoded {
  std::span<const std::byte> bytes;
  std::string_view where;
  std::uint64_t max_pixels;
  int covers = 0;  // DecodeOptions'
};

Picture decode_png(const Encoded& file, Want want);
Picture decode_jpeg(const Encoded& file, Want want);
Picture decode_webp(const Encoded& file, Want want);
Picture decode_gif(const Encoded& file, Want want);
Picture decode_bmp(const Encoded& file, Want want);
Picture decode_tiff(const Encoded& file, Want want);
Picture decode_avif(const Encoded& file, Want want);  // upright already: its library knows which way up it is

// A picture of this size, without its pixels. Error(data) above the limit or for sizes of zero.
Picture make_picture(const Encoded& file, std::uint64_t width, std::uint64_t height, int channels);
std::size_t count_pixels(const Picture& picture);

// Error(data) where the decoder would need more memory at once than is allowed.
void check_memory(const Encoded& file, const Picture& picture, std::uint64_t bytes);

// Pixels of channels + 1 values, the last one the opacity, composed over white, in place.
void over_white(std::vector<std::uint8_t>& pixels, int channels);

}  // namespace ditto::formats
