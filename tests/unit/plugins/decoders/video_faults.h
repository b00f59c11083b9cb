// What may happen to a damaged video: an error of kind data that begins with its place, or frames.
#pragma once

#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/support/videos.h"

namespace ditto::test {

// What was said; "": all frames that it has came.
inline std::string reads_or_says(const VideoDecoder& decoder, const std::string& bytes) {
  try {
    const auto video = open_video(decoder, bytes, "the video");
    video->decode({0, video->frames(), 1}, [](const VideoFrame& frame) {
      CHECK(frame.pixels.size() == static_cast<std::size_t>(3 * frame.height * frame.width));
    });
    return "";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    const std::string text = error.what();
    CHECK(text.starts_with("the video: "));
    CHECK(text.find('\n') == std::string::npos);
    return text;
  }
}

}  // namespace ditto::test
