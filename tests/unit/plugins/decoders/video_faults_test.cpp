// Malformed video files: each is one error at its place.
#include <cstring>

#include "tests/unit/plugins/decoders/video_faults.h"

namespace {

using ditto::test::contains;
using ditto::test::golden_video;
using ditto::test::read_text;
using ditto::test::reads_or_says;

// The number after the name of a box in the sample table, `at` bytes further, in two bytes.
void write_number(std::string& bytes, const char* box, std::size_t at, int value) {
  const auto place = bytes.find(box, bytes.find("stsd")) + 4 + at;
  bytes[place] = static_cast<char>(value >> 8);
  bytes[place + 1] = static_cast<char>(value & 255);
}

}  // namespace

TEST_CASE("what is no video, or none that is decoded, is refused by what it is") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  const auto whole = read_text(golden_video("h264.mp4"));
  CHECK(contains(reads_or_says(*decoder, ""), "is empty"));
  CHECK(contains(reads_or_says(*decoder, std::string(4096, '\0')), "cannot be read as MP4"));
  CHECK(contains(reads_or_says(*decoder, "\x89PNG\r\n\x1a\n and no video"), "cannot be read as MP4"));
  CHECK(contains(reads_or_says(*decoder, "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"),
                 "cannot be read as MP4"));  // a playlist would open other files
  CHECK(contains(reads_or_says(*decoder, read_text(golden_video("no_frames.mp4"))), "has no"));
  CHECK(contains(reads_or_says(*decoder, whole.substr(0, whole.find("moov"))),
                 "cannot be read as MP4"));  // its index is last

  auto huge = whole;
  write_number(huge, "avc1", 24, 60000);
  write_number(huge, "avc1", 26, 60000);
  CHECK(contains(reads_or_says(*decoder, huge), "60000 x 60000 (height x width); at most 37748736 pixels"));
  auto tilted = whole;
  const char by_45_degrees[] = {0, 0, '\xb5', '\x05', 0, 0, '\xb5', '\x05'};
  std::memcpy(tilted.data() + tilted.find("tkhd") + 44, by_45_degrees, 8);
  CHECK(contains(reads_or_says(*decoder, tilted), "turned by an angle that is no quarter"));
  auto unknown = whole;
  unknown.replace(unknown.find("avc1", unknown.find("stsd")), 4, "Zz9z");
  CHECK(contains(reads_or_says(*decoder, unknown), "is coded as"));
}

TEST_CASE("frames that a file has not are refused, with how many it has") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  const auto whole = read_text(golden_video("h264.mp4"));
  const auto said = [&](ditto::FrameRange range) {
    return ditto::test::error_of(ditto::ErrorKind::data, [&] {
      ditto::test::pixels_of(*ditto::test::open_video(*decoder, whole, "a.mp4"), range);
    });
  };
  CHECK(contains(said({0, 25, 1}), "a.mp4: has 24 frames; 25 of them, each 1 further, are wanted"));
  CHECK(contains(said({10, 3, 7}), "3 of them, each 7 further, from frame 10 on, are wanted"));
  CHECK(contains(said({24, 1, 1}), "has 24 frames"));
  CHECK(contains(said({0, 2, std::int64_t{1} << 62}), "has 24 frames"));
  CHECK(ditto::test::pixels_of(*ditto::test::open_video(*decoder, whole, "a.mp4"), {23, 1, 5}).size() == 24 * 32 * 3);
}

TEST_CASE("cut and damaged files are named, and what was read before the damage is whole") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  for (const char* name : {"h264_fragments.mp4", "vp9.webm", "mpeg2.ts", "mpeg4.avi"}) {
    CAPTURE(name);
    const auto whole = read_text(golden_video(name));
    for (int part = 1; part < 8; ++part) reads_or_says(*decoder, whole.substr(0, whole.size() * part / 8));
  }
  // Coded frames that are lost in the middle of a file: its index still counts them.
  auto lost = read_text(golden_video("h264.mp4"));
  const auto data = lost.find("mdat") + 4;
  std::fill_n(lost.begin() + static_cast<std::ptrdiff_t>(data + 1200), 600, '\0');
  CHECK(contains(reads_or_says(*decoder, lost), "frame "));
  auto flipped = read_text(golden_video("h264.mp4"));
  const auto at = data + 1200;
  for (std::size_t i = 0; i < 40; ++i) flipped[at + 7 * i] = static_cast<char>(flipped[at + 7 * i] ^ 0x55);
  CHECK(contains(reads_or_says(*decoder, flipped), "frame "));
}
