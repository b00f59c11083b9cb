// Decoded frames as RGB that stands upright.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/video_decoder.h>

#include "libav.h"

namespace ffmpeg {

// How a file says that its frames are shown: turned by quarters, or mirrored.
struct Turn {
  bool transposed = false;                      // a row that is shown is a column of the frame
  bool from_right = false, from_below = false;  // columns are read from the last on, and rows
  // Throws Error(data) at `place` for a matrix that is none of the eight.
  static Turn of(const std::int32_t* display_matrix, const std::string& place);
};

class Upright {
 public:
  Upright(const Turn& turn, std::string place) : turn_(turn), place_(std::move(place)) {}
  // The pixels are there until the next call. Throws Error(data) for colours that are not converted here.
  ditto::VideoFrame of(const AVFrame& frame);

 private:
  void convert(const AVFrame& frame);

  Turn turn_;
  std::string place_;
  Held<SwsContext> sws_;
  int height_ = 0, width_ = 0, format_ = -1, matrix_ = -1, range_ = -1;  // what it converts
  std::size_t stride_ = 0;
  std::vector<std::uint8_t> rgb_, upright_;
};

}  // namespace ffmpeg
