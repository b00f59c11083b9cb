// WebP by libwebp; still pictures only.
#include <ditto/error.h>
#include <webp/decode.h>
#include <webp/mux.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/formats/picture/exif.h"
#include "core/formats/picture/picture_codecs.h"
#include "core/formats/picture/picture_colour.h"

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

[[noreturn]] void fail(const Encoded& file, const char* why) {
  throw Error(ErrorKind::data, file.where, std::string("the WebP does not decode: ") + why);
}

WebPBitstreamFeatures features_of(const Encoded& file) {
  WebPBitstreamFeatures features;
  const auto status =
      WebPGetFeatures(reinterpret_cast<const std::uint8_t*>(file.bytes.data()), file.bytes.size(), &features);
  if (status != VP8_STATUS_OK) fail(file, reason(status));
  return features;
}

struct Still {
  Picture picture;  // of four values a pixel where it has opacity
  bool has_opacity;
};

Still decode_still(const Encoded& file, Want want) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) fail(file, "libwebp could not start");
  config.input = features_of(file);
  const bool alpha = config.input.has_alpha != 0;
  Picture picture = make_picture(file, static_cast<std::uint64_t>(config.input.width),
                                 static_cast<std::uint64_t>(config.input.height), 3);
  if (want == Want::header) return {picture, alpha};
  const bool lossy = config.input.format == 1;  // else all is decoded at once, four bytes a pixel
  check_memory(file, picture, count_pixels(picture) * ((alpha ? 4 : 3) + (!lossy ? 4 : alpha ? 1 : 0)));

  const auto row_bytes = static_cast<std::size_t>(picture.width) * (alpha ? 4 : 3);
  picture.pixels.resize(row_bytes * static_cast<std::size_t>(picture.height));
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = picture.pixels.data();
  config.output.u.RGBA.stride = static_cast<int>(row_bytes);
  config.output.u.RGBA.size = picture.pixels.size();
  const VP8StatusCode status =
      WebPDecode(reinterpret_cast<const std::uint8_t*>(file.bytes.data()), file.bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) fail(file, reason(status));
  return {std::move(picture), alpha};
}

struct Close {
  void operator()(WebPMux* mux) const { WebPMuxDelete(mux); }
};

struct Frame : WebPMuxFrameInfo {
  Frame() : WebPMuxFrameInfo{} {}
  ~Frame() { WebPDataClear(&bitstream); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
};

// An animation of one frame is a still picture, on a canvas that may be larger: transparent around it, or black where
// the file has no opacity, as in Pillow.
Still decode_only_frame(const Encoded& file, Want want) {
  const WebPData bytes{reinterpret_cast<const std::uint8_t*>(file.bytes.data()), file.bytes.size()};
  const std::unique_ptr<WebPMux, Close> mux(WebPMuxCreate(&bytes, /*copy_data=*/0));
  int frames = 0, width = 0, height = 0;
  std::uint32_t flags = 0;
  Frame frame;
  if (!mux || WebPMuxNumChunks(mux.get(), WEBP_CHUNK_ANMF, &frames) != WEBP_MUX_OK) fail(file, "its data are damaged");
  if (frames > 1) throw Error(ErrorKind::data, file.where, "it is an animation; a still picture is expected");
  if (WebPMuxGetFrame(mux.get(), 1, &frame) != WEBP_MUX_OK ||
      WebPMuxGetCanvasSize(mux.get(), &width, &height) != WEBP_MUX_OK ||
      WebPMuxGetFeatures(mux.get(), &flags) != WEBP_MUX_OK)
    fail(file, "its only frame is damaged");
  Still whole{make_picture(file, static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(height), 3),
              (flags & ALPHA_FLAG) != 0};
  if (want == Want::header) return whole;
  const Encoded inner{std::as_bytes(std::span(frame.bitstream.bytes, frame.bitstream.size)), file.where,
                      file.max_pixels};
  const Still part = decode_still(inner, want);
  const std::size_t values = whole.has_opacity ? 4 : 3, own = part.has_opacity ? 4 : 3;
  check_memory(file, whole.picture, count_pixels(whole.picture) * values + part.picture.pixels.size());
  whole.picture.pixels.resize(count_pixels(whole.picture) * values);
  for (int y = 0; y < std::min(part.picture.height, height - frame.y_offset); ++y)
    for (int x = 0; x < std::min(part.picture.width, width - frame.x_offset); ++x) {
      const auto at = [](std::ptrdiff_t row, std::ptrdiff_t sides, std::ptrdiff_t column) {
        return static_cast<std::size_t>(row * sides + column);
      };
      const std::size_t from = at(y, part.picture.width, x) * own,
                        to = at(y + frame.y_offset, width, x + frame.x_offset) * values;
      for (std::size_t c = 0; c < values; ++c)
        whole.picture.pixels[to + c] = c < own ? part.picture.pixels[from + c] : 255;
    }
  return whole;
}

}  // namespace

Picture decode_webp(const Encoded& file, Want want) {
  auto [picture, has_opacity] =
      features_of(file).has_animation ? decode_only_frame(file, want) : decode_still(file, want);
  if (want == Want::header) return std::move(picture);
  ToSrgb(webp_chunk(file.bytes, "ICCP"), Colours::rgb, count_pixels(picture), has_opacity).convert(picture.pixels);
  if (has_opacity) over_white(picture.pixels, 3);
  return std::move(picture);
}

}  // namespace ditto::formats
