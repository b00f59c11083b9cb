// Video files to frames. The libraries for it are a plugin's, so that neither the host nor a source links them: a
// source asks the host for a decoder by name (Source::Needs::decoder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <ditto/plugin.h>

namespace ditto {

// A video's bytes, wherever they lie.
struct VideoFile {
  std::string place;  // for messages: "clips.csv:17:cats/1.mp4"
  std::uint64_t size = 0;
  // All of `into`, which lies within `size`. Throws Error(data).
  std::function<void(std::uint64_t offset, std::span<std::byte> into)> read;
};

// Rows from the top, height x width x 3: red, green, blue of 0 … 255, upright. Pixels are there until the call returns.
struct VideoFrame {
  std::span<const std::uint8_t> pixels;
  std::int64_t height = 0, width = 0;
};

// Frames first, first + interval, …: `count` of them, in the order in which they are shown.
struct FrameRange {
  std::int64_t first = 0, count = 1, interval = 1;
};

// One file, opened. For one thread at a time. Whatever is wrong with the file is Error(data) at its place.
class DITTO_API Video {
 public:
  virtual ~Video();
  virtual std::int64_t height() const = 0;  // upright, as the file's header says
  virtual std::int64_t width() const = 0;
  virtual std::int64_t frames() = 0;  // that are shown; what holds no index is read through for it
  // Calls take(frame) for each of them; only those frames are decoded that they depend on. Throws Error(data), too, for
  // frames that the file has not or that are damaged. A frame may be of another size than the header says.
  virtual void decode(const FrameRange& range, const std::function<void(const VideoFrame&)>& take) = 0;
  virtual std::int64_t decoded() const = 0;  // coded frames that the decoder got so far
};

// open() is thread-safe. The same file gives the same pixels on any machine and number of threads.
class DITTO_API VideoDecoder {
 public:
  static constexpr const char* kKind = "decoder";
  static constexpr std::uint32_t kAbi = 5;
  struct Needs {
    // Refused before memory is taken for them.
    std::int64_t most_pixels = std::int64_t{36} << 20;  // of a frame: 8192 x 4608
    std::int64_t most_frames = 10'000'000;              // of a file: 46 hours at 60 a second
  };
  virtual ~VideoDecoder();
  // Reads the file's header. Throws Error(data).
  virtual std::unique_ptr<Video> open(VideoFile file) const = 0;
};

}  // namespace ditto
