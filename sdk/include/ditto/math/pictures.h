// From decoded pixels to what models learn from: what sources of pictures share.
#pragma once

#include <cstdint>
#include <span>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// Pixels of 0 … 255, height x width x channels, as float32 [C, H, W]: v / 127.5 - 1.
DITTO_API torch::Tensor image_of_pixels(std::span<const std::uint8_t> pixels, int64_t height, int64_t width,
                                        int64_t channels);

// The largest centred part of the wanted proportions of a picture [C, H, W], resized with a triangle filter as wide as
// a target pixel (which is an interpolation where pictures grow), so that small pictures are not aliased.
DITTO_API torch::Tensor crop_and_resize(const torch::Tensor& image_CHW, int64_t height, int64_t width);

}  // namespace ditto
