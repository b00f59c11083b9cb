// The tiny videos of tests/golden/videos, opened by the plugin that decodes video files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ditto/video_decoder.h>

#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

namespace ditto::test {

inline std::filesystem::path golden_video(const std::string& name) {
  return std::filesystem::path(DITTO_SOURCE_DIR) / "tests/golden/videos" / name;
}

// nullptr, said: the plugin was left out of this build.
inline std::shared_ptr<VideoDecoder> video_decoder() {
  if (std::filesystem::exists(plugin_folder() + "/decoders/libffmpeg.so"))
    return make_plugin<VideoDecoder>("decoders", "ffmpeg");
  std::puts("not run: video files: the plugin ffmpeg was not built, for lack of FFmpeg's libraries");
  return nullptr;
}

// Of bytes, which outlive it.
inline std::unique_ptr<Video> open_video(const VideoDecoder& decoder, const std::string& bytes,
                                         const std::string& place) {
  return decoder.open({place, bytes.size(), [&bytes](std::uint64_t offset, std::span<std::byte> into) {
                         std::copy_n(as_bytes(bytes).begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                                     into.begin());
                       }});
}

// All pixels of the frames, one after another.
inline std::vector<std::uint8_t> pixels_of(Video& video, const FrameRange& range) {
  std::vector<std::uint8_t> all;
  video.decode(range,
               [&](const VideoFrame& frame) { all.insert(all.end(), frame.pixels.begin(), frame.pixels.end()); });
  return all;
}

}  // namespace ditto::test
