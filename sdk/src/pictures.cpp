#include <ditto/pictures.h>

#include <ATen/Functions.h>

#include <algorithm>

namespace ditto {

torch::Tensor image_of_pixels(std::span<const std::uint8_t> pixels, int64_t height, int64_t width, int64_t channels) {
  auto out = torch::empty({channels, height, width});
  auto* to = out.data_ptr<float>();
  const auto area = static_cast<size_t>(height * width), count = static_cast<size_t>(channels);
  for (size_t c = 0; c < count; ++c)
    for (size_t i = 0; i < area; ++i) to[c * area + i] = static_cast<float>(pixels[i * count + c]) / 127.5f - 1.0f;
  return out;
}

torch::Tensor crop_and_resize(const torch::Tensor& image_CHW, int64_t height, int64_t width) {
  const int64_t h = image_CHW.size(1), w = image_CHW.size(2);
  if (h == height && w == width) return image_CHW;
  const int64_t part_h = std::clamp<int64_t>((w * height + width / 2) / width, 1, h);
  const int64_t part_w = std::clamp<int64_t>((h * width + height / 2) / height, 1, w);
  const auto part = image_CHW.narrow(1, (h - part_h) / 2, part_h).narrow(2, (w - part_w) / 2, part_w);
  return at::_upsample_bilinear2d_aa(part.unsqueeze(0).contiguous(), {height, width}, false).squeeze(0);
}

}  // namespace ditto
