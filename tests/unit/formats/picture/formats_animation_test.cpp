// Videos as animated WebP: read back chunk by chunk, and each frame by the decoder of still pictures.
#include <cstring>
#include <vector>

#include "core/formats/picture/picture.h"
#include "support/files.h"

#include <doctest/doctest.h>

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;

namespace {

Picture frame_pattern(int width, int height, int channels, int first) {
  Picture picture{width, height, channels, {}};
  for (int i = 0; i < width * height * channels; ++i)
    picture.pixels.push_back(static_cast<std::uint8_t>(first + i * 7));
  return picture;
}

struct Frame {
  int duration_ms;
  Picture picture;
};

std::uint32_t number_at(const std::string& bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + static_cast<std::size_t>(i)));
  return value;
}

// RIFF, then chunks of a name, a length and so many bytes, made even; ANMF's first 16 bytes say place, size and time.
std::vector<Frame> frames_of(const std::vector<std::byte>& file) {
  const std::string bytes(reinterpret_cast<const char*>(file.data()), file.size());
  REQUIRE(bytes.substr(0, 4) == "RIFF");
  REQUIRE(bytes.substr(8, 4) == "WEBP");
  REQUIRE(number_at(bytes, 4, 4) == bytes.size() - 8);
  std::vector<Frame> frames;
  for (std::size_t at = 12; at < bytes.size();) {
    const auto name = bytes.substr(at, 4);
    const auto size = number_at(bytes, at + 4, 4);
    if (name == "ANIM") CHECK(number_at(bytes, at + 12, 2) == 0);  // it starts over for ever
    if (name == "ANMF") {
      const auto inner = bytes.substr(at + 24, size - 16);
      std::string still = "RIFF";
      const auto length = static_cast<std::uint32_t>(inner.size() + 4);
      for (int i = 0; i < 4; ++i) still += static_cast<char>(length >> (8 * i) & 0xFF);
      still += "WEBP" + inner;
      frames.push_back(
          {static_cast<int>(number_at(bytes, at + 8 + 12, 3)), decode_picture(ditto::test::as_bytes(still), "frame")});
    }
    at += 8 + size + size % 2;
  }
  return frames;
}

}  // namespace

TEST_CASE("a video keeps every frame, in order and lossless, equal ones too") {
  const std::vector<Picture> video{frame_pattern(9, 5, 3, 0), frame_pattern(9, 5, 3, 1), frame_pattern(9, 5, 3, 1),
                                   frame_pattern(9, 5, 3, 0)};
  const auto frames = frames_of(encode_webp(video));
  REQUIRE(frames.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(frames[i].picture.width == 9);
    CHECK(frames[i].picture.height == 5);
    CHECK(frames[i].picture.pixels == video[i].pixels);
    CHECK(frames[i].duration_ms == 125);
  }
  CHECK((encode_webp(video) == encode_webp(video)));
}

TEST_CASE("times of frames are rounded, and do not drift") {
  const std::vector<Picture> video(30, frame_pattern(2, 2, 3, 0));
  int all = 0;
  for (const auto& frame : frames_of(encode_webp(video, 30))) all += frame.duration_ms;
  CHECK(all == 1000);
}

TEST_CASE("grey frames become colour, and one frame a still picture") {
  const auto grey = frame_pattern(4, 4, 1, 3);
  const auto frames = frames_of(encode_webp(std::vector{grey, grey}));
  REQUIRE(frames.size() == 2);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i)
    for (std::size_t c = 0; c < 3; ++c) CHECK(frames[1].picture.pixels[3 * i + c] == grey.pixels[i]);
  CHECK(decode_picture(encode_webp(std::vector{frame_pattern(4, 4, 3, 0)}), "still").pixels ==
        frame_pattern(4, 4, 3, 0).pixels);
}

TEST_CASE("what is no video is refused with its sizes") {
  const auto refusal = [](const std::vector<Picture>& frames) {
    return error_of(ErrorKind::data, [&] { encode_webp(frames); });
  };
  CHECK(contains(refusal({}), "no frames"));
  CHECK(contains(refusal({frame_pattern(4, 4, 3, 0), frame_pattern(4, 5, 3, 0)}),
                 "a frame of 4x5 stands beside one of 4x4"));
  CHECK(contains(refusal({frame_pattern(kWebpSide + 1, 1, 1, 0)}), "16384x1"));
  CHECK(contains(refusal({{4, 4, 3, {}}}), "0 values"));
  CHECK_NOTHROW(encode_webp(std::vector{frame_pattern(kWebpSide, 1, 1, 0)}));
}
