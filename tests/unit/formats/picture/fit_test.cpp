// Whole pictures brought to a square: stretched, or on white.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/formats/picture/picture_resize.h"

using namespace ditto::formats;

namespace {

Picture plain(int width, int height, int channels, std::uint8_t value) {
  return {width, height, channels,
          std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * channels), value)};
}

std::uint8_t pixel_at(const Picture& picture, int x, int y) {
  return picture.pixels[static_cast<std::size_t>((y * picture.width + x) * picture.channels)];
}

}  // namespace

TEST_CASE("a padded picture stands whole in the middle, and white is around it") {
  for (const int channels : {1, 3}) {
    const auto wide = pad(plain(40, 20, channels, 60), 10, 10);
    CHECK(wide.width == 10);
    CHECK(wide.height == 10);
    CHECK(wide.channels == channels);
    for (int y = 0; y < 10; ++y)
      for (int x = 0; x < 10; ++x) CHECK(pixel_at(wide, x, y) == (y >= 2 && y < 7 ? 60 : 255));
    const auto tall = pad(plain(3, 12, channels, 60), 8, 8);
    for (int y = 0; y < 8; ++y)
      for (int x = 0; x < 8; ++x) CHECK(pixel_at(tall, x, y) == (x >= 3 && x < 5 ? 60 : 255));
  }
  CHECK(pad(plain(1000, 1, 1, 60), 8, 8).pixels[8 * 3] == 60);  // of a line at least a row is left
  CHECK(pad(plain(8, 8, 3, 60), 8, 8).pixels == plain(8, 8, 3, 60).pixels);
}

TEST_CASE("a stretched picture has what its edges had at its edges") {
  auto halves = plain(40, 10, 1, 0);
  for (int y = 0; y < 10; ++y)
    for (int x = 20; x < 40; ++x) halves.pixels[static_cast<std::size_t>(y * 40 + x)] = 200;
  const auto made = stretch(halves, 10, 10);
  CHECK(made.width == 10);
  CHECK(made.height == 10);
  for (int y = 0; y < 10; ++y) {
    CHECK(pixel_at(made, 0, y) == 0);
    CHECK(pixel_at(made, 9, y) == 200);
  }
  CHECK(stretch(halves, 10, 40).pixels == halves.pixels);
}
