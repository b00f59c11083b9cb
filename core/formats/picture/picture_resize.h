// Pictures made smaller or larger.
#pragma once

#include "picture.h"

namespace ditto::formats {

// The picture brought to a size that just covers height x width, and the middle cut out: box filters halve it while it
// is twice as large or more, and a bicubic filter (a = -1/2), as wide as a target pixel so that nothing is aliased,
// does the rest. For squares this is center_crop_arr of ADM (https://arxiv.org/abs/2105.05233), whose filters are
// Pillow's; values are within 1 of 255 of its own. A picture of that size stays as it is.
Picture cover(Picture picture, int height, int width);

// The whole picture brought to height x width, whatever its own proportions, by the bicubic filter as wide as a target
// pixel.
Picture stretch(const Picture& picture, int height, int width);
// The whole picture in the middle of height x width, as large as goes into it, and white around it.
Picture pad(const Picture& picture, int height, int width);

// What cover()'s box makes of two rows of an even number of pixels: `line` is room for one of them; `to`, which may be
// the first of them, is written up to kBeyondHalved bytes beyond the halved row.
inline constexpr std::size_t kBeyondHalved = 7;
void halve_rows(const std::uint8_t* row, const std::uint8_t* below, std::size_t bytes, std::size_t channels,
                std::uint8_t* line, std::uint8_t* to);

}  // namespace ditto::formats
