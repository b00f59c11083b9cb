// Animated WebP by libwebp and libwebpmux.
#include <ditto/error.h>
#include <webp/decode.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <cmath>
#include <memory>

#include "core/formats/file.h"
#include "core/formats/picture/picture.h"

namespace ditto::formats {

namespace {

constexpr std::uint64_t kMostFrameBytes = std::uint64_t{1} << 30;  // of a video's pixels

struct DeleteMux {
  void operator()(WebPMux* mux) const { WebPMuxDelete(mux); }
};

std::string size_of(const Picture& picture) {
  return std::to_string(picture.width) + "x" + std::to_string(picture.height);
}

[[noreturn]] void refuse(const std::string& what, std::string_view remedy = {}) {
  throw Error(ErrorKind::data, {}, "the animated WebP cannot be made: " + what, remedy);
}

void check_frame(const Picture& frame, const Picture& first) {
  if (frame.width != first.width || frame.height != first.height)
    refuse("a frame of " + size_of(frame) + " stands beside one of " + size_of(first));
  if (frame.width < 1 || frame.height < 1 || frame.width > kWebpSide || frame.height > kWebpSide)
    refuse("a frame is of " + size_of(frame), "sides are 1 to " + std::to_string(kWebpSide) + " pixels");
  const auto pixels = static_cast<std::size_t>(frame.width) * static_cast<std::size_t>(frame.height);
  if ((frame.channels != 1 && frame.channels != 3) ||
      frame.pixels.size() != pixels * static_cast<std::size_t>(frame.channels))
    refuse("a frame of " + size_of(frame) + " has " + std::to_string(frame.channels) + " channels and " +
           std::to_string(frame.pixels.size()) + " values");
}

std::vector<std::uint8_t> in_colour(const Picture& frame) {
  if (frame.channels == 3) return frame.pixels;
  std::vector<std::uint8_t> rgb;
  rgb.reserve(3 * frame.pixels.size());
  for (const auto level : frame.pixels) rgb.insert(rgb.end(), 3, level);
  return rgb;
}

// One frame as a still WebP, in memory of libwebp's.
class StillWebp {
 public:
  explicit StillWebp(const Picture& frame) {
    const auto rgb = in_colour(frame);
    const std::size_t bytes = WebPEncodeLosslessRGB(rgb.data(), frame.width, frame.height, 3 * frame.width,
                                                    const_cast<uint8_t**>(&data_.bytes));
    data_.size = bytes;
    if (bytes == 0) refuse("libwebp gave nothing for a frame of " + size_of(frame), "it may lack memory");
  }
  ~StillWebp() { WebPFree(const_cast<uint8_t*>(data_.bytes)); }
  StillWebp(const StillWebp&) = delete;
  StillWebp& operator=(const StillWebp&) = delete;
  const WebPData& data() const { return data_; }

 private:
  WebPData data_{nullptr, 0};
};

}  // namespace

// By the muxer itself: WebPAnimEncoder joins frames that look alike, and a video keeps its frames' number.
std::vector<std::byte> encode_webp(std::span<const Picture> frames, double frames_a_second) {
  if (frames.empty()) refuse("there are no frames");
  const std::unique_ptr<WebPMux, DeleteMux> mux(WebPMuxNew());
  const auto at_ms = [&](std::size_t frame) {
    return static_cast<int>(std::lround(1000.0 * static_cast<double>(frame) / frames_a_second));
  };
  WebPMuxError state = mux ? WEBP_MUX_OK : WEBP_MUX_MEMORY_ERROR;
  for (std::size_t i = 0; i < frames.size() && state == WEBP_MUX_OK; ++i) {
    check_frame(frames[i], frames.front());
    const StillWebp still(frames[i]);
    WebPMuxFrameInfo info{};
    info.bitstream = still.data();
    info.duration = at_ms(i + 1) - at_ms(i);
    info.id = WEBP_CHUNK_ANMF;
    info.dispose_method = WEBP_MUX_DISPOSE_NONE;
    info.blend_method = WEBP_MUX_NO_BLEND;
    state = WebPMuxPushFrame(mux.get(), &info, /*copy_data=*/1);
  }
  WebPMuxAnimParams forever{};
  forever.bgcolor = 0xFF000000;
  if (state == WEBP_MUX_OK) state = WebPMuxSetAnimationParams(mux.get(), &forever);
  WebPData whole{nullptr, 0};
  if (state == WEBP_MUX_OK) state = WebPMuxAssemble(mux.get(), &whole);
  if (state != WEBP_MUX_OK) refuse("libwebpmux ends with code " + std::to_string(state), "it may lack memory");
  const auto* begin = reinterpret_cast<const std::byte*>(whole.bytes);
  std::vector<std::byte> bytes(begin, begin + whole.size);
  WebPDataClear(&whole);
  return bytes;
}

std::vector<Picture> decode_webp_frames(std::span<const std::byte> bytes, std::string_view where) {
  const auto refuse_file = [&](const std::string& what) { throw Error(ErrorKind::data, std::string(where), what); };
  const WebPData data{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const std::unique_ptr<WebPMux, DeleteMux> mux(WebPMuxCreate(&data, /*copy_data=*/0));
  if (!mux) refuse_file("is no whole WebP");
  std::vector<Picture> frames;
  std::uint64_t values = 0;
  for (uint32_t number = 1;; ++number) {
    WebPMuxFrameInfo info{};
    const auto state = WebPMuxGetFrame(mux.get(), number, &info);
    if (state == WEBP_MUX_NOT_FOUND && number > 1) return frames;
    if (state != WEBP_MUX_OK) refuse_file("has no frame that can be read");
    const std::unique_ptr<const uint8_t, void (*)(const uint8_t*)> owned(
        info.bitstream.bytes, [](const uint8_t* frame) { WebPFree(const_cast<uint8_t*>(frame)); });
    Picture frame;
    frame.channels = 3;
    if (!WebPGetInfo(info.bitstream.bytes, info.bitstream.size, &frame.width, &frame.height))
      refuse_file("has a damaged frame");
    const auto size =
        std::uint64_t{3} * static_cast<std::uint64_t>(frame.width) * static_cast<std::uint64_t>(frame.height);
    values += size;
    if (values > kMostFrameBytes) refuse_file("has frames of too many pixels");
    frame.pixels.resize(size);
    if (!WebPDecodeRGBInto(info.bitstream.bytes, info.bitstream.size, frame.pixels.data(), frame.pixels.size(),
                           3 * frame.width))
      refuse_file("has a damaged frame");
    frames.push_back(std::move(frame));
  }
}

void write_webp(const std::string& path, std::span<const Picture> frames, double frames_a_second) {
  write_file(path, encode_webp(frames, frames_a_second), ErrorKind::data);
}

}  // namespace ditto::formats
