// Pictures: PNG, JPEG, WebP, AVIF, TIFF, GIF and BMP to 8-bit pixels; pixels to PNG with text chunks, and to animated
// WebP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ditto/formats/limits.h>
#include "pixels.h"

namespace ditto::formats {

enum class Channels { as_stored, grey, rgb };  // as_stored: grey files stay 1 channel, all others become 3

struct DecodeOptions {
  Channels channels = Channels::as_stored;
  std::uint64_t max_pixels = limits::kPixels;  // width x height above this is refused before anything is decoded
  // Above 0: cover() comes next (picture_resize.h), to sides of at most this. A JPEG is then decoded at a half, a
  // quarter or an eighth of its size where no side falls below twice that, and halved as cover() would where it can be.
  int covers = 0;
};

PictureFormat sniff_picture(std::span<const std::byte> bytes);  // by the first bytes, not by a file's name

// Decodes by the sniffed format. Transparency is composed over white; 16 bits are reduced to 8 (v * 255 / 65535,
// rounded); palettes and small grey depths are expanded; CMYK becomes RGB, by its profile in a JPEG that has one; an
// animated WebP, GIF or AVIF and a TIFF of several pages are refused. EXIF's orientation is applied, so that pictures
// stand upright, and an ICC profile of another space than sRGB: its colours become sRGB's. Channels::grey uses the
// weights 0.299, 0.587, 0.114. Throws Error(data) "WHERE: …" for anything that is not a whole, undamaged picture, and
// where decoding would take over 320 MiB.
Picture decode_picture(std::span<const std::byte> bytes, std::string_view where, const DecodeOptions& options = {});
Picture read_picture(const std::string& path, const DecodeOptions& options = {});

void convert(Picture& picture, Channels channels);  // as decode_picture does

// Width and height (upright) and channels (as_stored) from the header alone; pixels stay empty. Same errors and limit.
Picture picture_size(std::span<const std::byte> bytes, std::string_view where, const DecodeOptions& options = {});

// Text chunks of a PNG: keyword (1..79 Latin-1 letters) and UTF-8 text, in order.
using PngText = std::vector<std::pair<std::string, std::string>>;

// Lossless; the bytes depend on nothing but the arguments and zlib. Pure ASCII text is written as tEXt, other as iTXt.
std::vector<std::byte> encode_png(const Picture& picture, const PngText& text = {});
void write_png(const std::string& path, const Picture& picture, const PngText& text = {});  // Error(data)

// Frames of one size as an animated WebP that starts over at its end, lossless and in colour, every frame by itself; of
// one frame a still WebP. The bytes depend on nothing but the arguments and libwebp. Throws Error(data) for no frames,
// other sizes, or sides over 16,383 pixels.
inline constexpr int kWebpSide = 16383;
std::vector<std::byte> encode_webp(std::span<const Picture> frames, double frames_a_second = 8);
void write_webp(const std::string& path, std::span<const Picture> frames, double frames_a_second = 8);
// The frames of what encode_webp made, in colour. Throws Error(data) "WHERE: …" for anything else, and for pictures or
// all frames together of more than the usual limits.
std::vector<Picture> decode_webp_frames(std::span<const std::byte> bytes, std::string_view where);

// At most 64 chunks, of at most 1 MiB unpacked; others are left out. Error(data).
PngText read_png_text(std::span<const std::byte> bytes, std::string_view where);

}  // namespace ditto::formats
