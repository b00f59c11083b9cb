#include "core/formats/picture/picture_codecs.h"

#include <cstring>
#include <string>

#include <ditto/error.h>

#include "core/formats/limits.h"

namespace ditto::formats {

Picture make_picture(const Encoded& file, std::uint64_t width, std::uint64_t height, int channels) {
  constexpr std::uint64_t kMaxSide = 1u << 24;  // so that products below stay far from overflow
  if (width == 0 || height == 0 || width > kMaxSide || height > kMaxSide || width * height > file.max_pixels)
    throw Error(ErrorKind::data, file.where,
                "the picture has " + std::to_string(width) + "x" + std::to_string(height) + " pixels; 1 to " +
                    std::to_string(file.max_pixels) + " in all are taken");
  return {static_cast<int>(width), static_cast<int>(height), channels, {}};
}

std::size_t count_pixels(const Picture& picture) {
  return static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.height);
}

void check_memory(const Encoded& file, const Picture& picture, std::uint64_t bytes) {
  if (bytes > limits::kPictureBytes)
    throw Error(ErrorKind::data, file.where,
                "decoding its " + std::to_string(picture.width) + "x" + std::to_string(picture.height) +
                    " pixels takes " + std::to_string(bytes / limits::kMiB) + " MiB of memory; up to " +
                    std::to_string(limits::kPictureBytes / limits::kMiB) + " are taken",
                "make the picture smaller");
}

namespace {

template <int kChannels>
void lay_over_white(std::vector<std::uint8_t>& pixels) {
  std::uint8_t* out = pixels.data();
  const std::uint8_t *in = pixels.data(), *end = in + pixels.size();
  const auto lay = [&](const std::uint8_t* pixel) {
    const unsigned opacity = pixel[kChannels];
    for (int c = 0; c < kChannels; ++c)
      out[c] = static_cast<std::uint8_t>((pixel[c] * opacity + 255 * (255 - opacity) + 127) / 255);
    out += kChannels;
  };
  if constexpr (kChannels == 3)  // four pixels at a time, of which most are all opaque, or all not there
    for (; end - in >= 16; in += 16) {
      std::uint8_t four[16];
      std::memcpy(four, in, sizeof four);
      if ((four[3] & four[7] & four[11] & four[15]) == 255) {
        for (int i = 0; i < 16; i += 4, out += 3)
          std::memcpy(out, four + i, 4);  // the next one is written over the last
      } else if ((four[3] | four[7] | four[11] | four[15]) == 0) {
        std::memset(out, 255, 12);
        out += 12;
      } else {
        for (int i = 0; i < 16; i += 4) lay(four + i);
      }
    }
  for (; in != end; in += kChannels + 1) lay(in);
  pixels.resize(pixels.size() / (kChannels + 1) * kChannels);
}

}  // namespace

void over_white(std::vector<std::uint8_t>& pixels, int channels) {
  channels == 1 ? lay_over_white<1>(pixels) : lay_over_white<3>(pixels);
}

}  // namespace ditto::formats
