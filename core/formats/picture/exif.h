// Which way up a picture is: EXIF's orientation tag, in JPEG, PNG, WebP and TIFF, and XMP's where EXIF has none. (Of
// AVIF its decoder knows it.)
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "core/formats/picture/pixels.h"

namespace ditto::formats {

// 1 to 8, as EXIF 2.32 numbers them; 1 (upright) where the file has no such tag, or one that cannot be read. Reads no
// pixels. As Pillow's exif_transpose finds it: in PNG in the chunk eXIf, else in a text "Raw profile type exif".
int orientation_of(std::span<const std::byte> file, PictureFormat format);

// The same of EXIF and XMP that were taken out of a file already. Nothing: there is no such tag.
std::optional<int> orientation_in_exif(std::span<const std::byte> exif);
int orientation_in_xmp(std::string_view xmp);

// The body of a WebP's first chunk of this type; empty: it has none.
std::span<const std::byte> webp_chunk(std::span<const std::byte> file, std::string_view type);

// 5 to 8 stand on their side: width and height change places.
bool swaps_sides(int orientation);
Picture upright(Picture picture, int orientation);

}  // namespace ditto::formats
