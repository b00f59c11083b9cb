// Pictures made smaller or larger.
#pragma once

#include "picture.h"

namespace ditto::formats {

// The picture brought to a size that just covers height x width, and the middle cut out: box filters halve it while it
// is twice as large or more, and a bicubic filter (a = -1/2), as wide as a target pixel so that nothing is aliased,
// does the rest. For squares this is center_crop_arr of ADM (https://arxiv.org/abs/2105.05233), whose filters are
// Pillow's; values are within 1 of 255 of its own. A picture of that size stays as it is.
Picture cover(Picture picture, int height, int width);

// DecodeOptions::least_side for a picture that cover() gets next: a halving is left to its own filters.
inline int least_side_for(int height, int width) { return 2 * (height > width ? height : width); }

}  // namespace ditto::formats
