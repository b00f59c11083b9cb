// Which way up a picture is: EXIF's orientation tag, in JPEG, PNG and WebP. (Of TIFF and AVIF their decoders know it.)
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/formats/picture.h"

namespace ditto::formats {

// 1 to 8, as EXIF 2.32 numbers them; 1 (upright) where the file has no such tag, or one that cannot be read. Reads no
// pixels.
int orientation_of(std::span<const std::byte> file, PictureFormat format);

// The body of a WebP's first chunk of this type; empty: it has none.
std::span<const std::byte> webp_chunk(std::span<const std::byte> file, std::string_view type);

// 5 to 8 stand on their side: width and height change places.
bool swaps_sides(int orientation);
Picture upright(Picture picture, int orientation);

}  // namespace ditto::formats
