// WebP by libwebp; still pictures only.
#include <ditto/error.h>
#include <webp/decode.h>

#include "core/formats/exif.h"
#include "core/formats/picture_codecs.h"
#include "core/formats/picture_colour.h"

namespace ditto::formats {

namespace {

const char* reason(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file was cut off";
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it uses a feature that libwebp does not know";
    default: return "its data are damaged";
  }
}

}  // namespace

Picture decode_webp(const Encoded& file, Want want) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(file.bytes.data());
  const auto fail = [&](const char* why) {
    throw Error(ErrorKind::data, file.where, std::string("the WebP does not decode: ") + why);
  };
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) fail("libwebp could not start");
  const VP8StatusCode header = WebPGetFeatures(data, file.bytes.size(), &config.input);
  if (header != VP8_STATUS_OK) fail(reason(header));
  if (config.input.has_animation) fail("it is an animation; a still picture is expected");
  const bool alpha = config.input.has_alpha != 0;
  Picture picture = make_picture(file, static_cast<std::uint64_t>(config.input.width),
                                 static_cast<std::uint64_t>(config.input.height), 3);
  if (want == Want::header) return picture;
  const bool lossy = config.input.format == 1;  // else all is decoded at once, four bytes a pixel
  check_memory(file, picture, count_pixels(picture) * ((alpha ? 4 : 3) + (!lossy ? 4 : alpha ? 1 : 0)));

  const auto row_bytes = static_cast<std::size_t>(picture.width) * (alpha ? 4 : 3);
  picture.pixels.resize(row_bytes * static_cast<std::size_t>(picture.height));
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = picture.pixels.data();
  config.output.u.RGBA.stride = static_cast<int>(row_bytes);
  config.output.u.RGBA.size = picture.pixels.size();
  const VP8StatusCode status = WebPDecode(data, file.bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) fail(reason(status));
  ToSrgb(webp_chunk(file.bytes, "ICCP"), Colours::rgb, count_pixels(picture), alpha).convert(picture.pixels);
  if (alpha) over_white(picture.pixels, 3);
  return picture;
}

}  // namespace ditto::formats
