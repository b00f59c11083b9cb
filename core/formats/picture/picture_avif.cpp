// AVIF by libavif; still pictures only.
#include <avif/avif.h>
#include <ditto/error.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/formats/picture/exif.h"
#include "core/formats/picture/picture_codecs.h"
#include "core/formats/picture/picture_colour.h"

namespace ditto::formats {

namespace {

struct Destroy {
  void operator()(avifDecoder* decoder) const { avifDecoderDestroy(decoder); }
};

std::span<const std::byte> bytes_in(const avifRWData& data) { return std::as_bytes(std::span(data.data, data.size)); }

// MIAF turns (counterclockwise quarters) first and mirrors then: 0 swaps top and bottom, 1 left and right. These
// decide, whatever EXIF says; XMP does where there is neither of them, as in Pillow.
int orientation_of(const avifImage& image) {
  static constexpr std::array<std::array<int, 4>, 3> kExif{{{1, 8, 3, 6}, {4, 5, 2, 7}, {2, 7, 4, 5}}};
  const unsigned turns = image.transformFlags & AVIF_TRANSFORM_IROT ? image.irot.angle % 4U : 0U;
  const unsigned mirror = image.transformFlags & AVIF_TRANSFORM_IMIR ? 1U + (image.imir.mode != 0 ? 1U : 0U) : 0U;
  const int told = kExif[mirror][turns];
  if (told != 1 || orientation_in_exif(bytes_in(image.exif))) return told;
  const auto xmp = bytes_in(image.xmp);
  return orientation_in_xmp({reinterpret_cast<const char*>(xmp.data()), xmp.size()});
}

bool is_wide(avifColorPrimaries primaries) {
  return primaries == AVIF_COLOR_PRIMARIES_BT2020 || primaries == AVIF_COLOR_PRIMARIES_SMPTE432 ||
         primaries == AVIF_COLOR_PRIMARIES_SMPTE431;
}

void to_srgb(const avifImage& image, std::vector<std::uint8_t>& pixels, Colours colours, bool opacity) {
  const std::size_t count = std::size_t{image.width} * image.height;
  if (image.icc.size > 0) {
    ToSrgb(bytes_in(image.icc), colours, count, opacity).convert(pixels);
  } else if (colours == Colours::rgb && is_wide(image.colorPrimaries)) {
    float primaries[8];
    avifColorPrimariesGetValues(image.colorPrimaries, primaries);
    ToSrgb(primaries, count, opacity).convert(pixels);
  }
}

}  // namespace

Picture decode_avif(const Encoded& file, Want want) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorKind::data, file.where, "the AVIF does not decode: " + reason);
  };
  const auto check = [&](avifResult result) {
    if (result != AVIF_RESULT_OK) fail(avifResultToString(result));
  };
  const std::unique_ptr<avifDecoder, Destroy> decoder(avifDecoderCreate());
  if (!decoder) fail("libavif could not start");
  decoder->maxThreads = 1;
  decoder->imageSizeLimit =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(file.max_pixels, AVIF_DEFAULT_IMAGE_SIZE_LIMIT));
  decoder->strictFlags = AVIF_STRICT_DISABLED;  // of old encoders' habits, not of damage
  check(avifDecoderSetIOMemory(decoder.get(), reinterpret_cast<const std::uint8_t*>(file.bytes.data()),
                               file.bytes.size()));
  check(avifDecoderParse(decoder.get()));
  const avifImage& image = *decoder->image;
  if (decoder->imageCount > 1)
    throw Error(ErrorKind::data, file.where, "it is an animation; a still picture is expected");
  if (image.transformFlags & AVIF_TRANSFORM_CLAP) fail("it is cut to a part of itself (clap), which is not read here");
  if (image.transferCharacteristics == AVIF_TRANSFER_CHARACTERISTICS_SMPTE2084 ||
      image.transferCharacteristics == AVIF_TRANSFER_CHARACTERISTICS_HLG)
    fail("its light is coded for HDR screens (PQ or HLG); save it in sRGB");
  const bool grey = image.yuvFormat == AVIF_PIXEL_FORMAT_YUV400, opacity = decoder->alphaPresent != AVIF_FALSE;
  Picture picture = make_picture(file, image.width, image.height, grey ? 1 : 3);
  const int orientation = orientation_of(image);
  if (want == Want::header) return upright(std::move(picture), orientation);

  const std::size_t values = opacity ? 4 : 3, sample = image.depth > 8 ? 2 : 1;
  check_memory(file, picture, count_pixels(picture) * (values + (opacity ? 4 : 3) * sample));  // planes beside pixels
  check(avifDecoderNextImage(decoder.get()));
  avifRGBImage rgb;
  avifRGBImageSetDefaults(&rgb, &image);
  if (rgb.width != image.width || rgb.width != static_cast<std::uint32_t>(picture.width) ||
      rgb.height != static_cast<std::uint32_t>(picture.height))
    fail("its size changes between header and pixels");
  rgb.depth = 8;
  rgb.format = opacity ? AVIF_RGB_FORMAT_RGBA : AVIF_RGB_FORMAT_RGB;
  picture.pixels.resize(values * count_pixels(picture));
  rgb.pixels = picture.pixels.data();
  rgb.rowBytes = static_cast<std::uint32_t>(values * rgb.width);
  check(avifImageYUVToRGB(&image, &rgb));
  if (grey) {  // three alike: the first is kept
    std::uint8_t* to = picture.pixels.data();
    for (std::size_t i = 0; i < picture.pixels.size(); i += values) {
      *to++ = picture.pixels[i];
      if (opacity) *to++ = picture.pixels[i + 3];
    }
    picture.pixels.resize(picture.pixels.size() / values * (opacity ? 2 : 1));
  }
  to_srgb(image, picture.pixels, grey ? Colours::grey : Colours::rgb, opacity);
  if (opacity) over_white(picture.pixels, picture.channels);
  return upright(std::move(picture), orientation);
}

}  // namespace ditto::formats
