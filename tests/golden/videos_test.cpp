// Claim (data): Frames of video files against what PyAV, with an FFmpeg of another version, reads out of them: made
// by make_videos.py.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "core/formats/tensor/safetensors.h"
#include "tests/support/videos.h"

namespace {

using nlohmann::json;

struct Difference {
  double mean = 0;
  int most = 0;
};

Difference difference(const std::vector<std::uint8_t>& a, const std::uint8_t* b) {
  Difference found;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const int off = std::abs(int{a[i]} - int{b[i]});
    found.mean += static_cast<double>(off) / static_cast<double>(a.size());
    found.most = std::max(found.most, off);
  }
  return found;
}

}  // namespace

TEST_CASE(
    "frames of each container and codec are PyAV's, and no more is decoded than lies between key frames and them") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  const auto notes = json::parse(std::ifstream(ditto::test::golden_video("videos.json")));
  const auto golden = ditto::formats::SafetensorsReader::open(ditto::test::golden_video("videos.safetensors").string());
  for (const auto& [name, note] : notes.items()) {
    CAPTURE(name);
    const auto& entry = golden.at(name);
    const auto expected = golden.read(entry);
    const auto bytes = ditto::test::read_text(ditto::test::golden_video(name));
    const auto frame_bytes = expected.size() / static_cast<std::size_t>(entry.shape[0]);
    for (const auto& read : note.at("reads")) {
      CAPTURE(read.dump());
      const auto video = ditto::test::open_video(*decoder, bytes, name);
      REQUIRE(video->frames() == note.at("frames").get<int64_t>());
      CHECK(video->height() == static_cast<int64_t>(entry.shape[1]));
      CHECK(video->width() == static_cast<int64_t>(entry.shape[2]));
      const ditto::FrameRange range{read[0], read[1], read[2]};
      std::int64_t taken = 0;
      video->decode(range, [&](const ditto::VideoFrame& frame) {
        const auto number = static_cast<std::size_t>(range.first + taken++ * range.interval);
        REQUIRE(frame.pixels.size() == frame_bytes);
        const auto off = difference({frame.pixels.begin(), frame.pixels.end()},
                                    reinterpret_cast<const std::uint8_t*>(expected.data()) + number * frame_bytes);
        CHECK(off.mean < 0.7);  // neighbours differ by 60
        CHECK(off.most <= 3);   // chroma is interpolated; without it (4:4:4) rounding alone is left
        if (name == "h264_turned.mp4") CHECK(off.most <= 1);
      });
      CHECK(taken == range.count);
      CHECK(video->decoded() == read[3].get<int64_t>());
    }
  }
}

TEST_CASE("frames that are taken alone or few have the bits that they have among all") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  const auto notes = json::parse(std::ifstream(ditto::test::golden_video("videos.json")));
  for (const auto& [name, note] : notes.items()) {
    CAPTURE(name);
    const auto bytes = ditto::test::read_text(ditto::test::golden_video(name));
    const auto video = ditto::test::open_video(*decoder, bytes, name);
    const auto all = ditto::test::pixels_of(*video, {0, 24, 1});
    const auto frame = all.size() / 24;
    for (const int64_t interval : {2, 3, 5, 24}) {
      for (int64_t first = 0; first < interval; ++first) {
        CAPTURE(interval);
        CAPTURE(first);
        const auto few = ditto::test::pixels_of(*video, {first, (23 - first) / interval + 1, interval});
        for (std::size_t i = 0; i < few.size() / frame; ++i)
          CHECK(std::equal(
              few.begin() + static_cast<std::ptrdiff_t>(i * frame),
              few.begin() + static_cast<std::ptrdiff_t>((i + 1) * frame),
              all.begin() + static_cast<std::ptrdiff_t>(
                                (static_cast<std::size_t>(first) + i * static_cast<std::size_t>(interval)) * frame)));
      }
    }
  }
}

TEST_CASE("one opened video gives any frames in any order, the same bits as opened anew") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  for (const char* name : {"h264.mp4", "h264_open.mp4", "vp9.webm", "mpeg2.ts", "mpeg4.avi"}) {
    CAPTURE(name);
    const auto bytes = ditto::test::read_text(ditto::test::golden_video(name));
    const auto again = ditto::test::open_video(*decoder, bytes, name);
    for (const int64_t first : {20, 3, 23, 0, 9, 9})
      CHECK(ditto::test::pixels_of(*again, {first, 1, 1}) ==
            ditto::test::pixels_of(*ditto::test::open_video(*decoder, bytes, name), {first, 1, 1}));
  }
}
