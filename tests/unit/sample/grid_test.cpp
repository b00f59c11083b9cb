#include "core/sample/grid.h"

#include <doctest/doctest.h>
#include <torch/types.h>

#include <algorithm>

#include "support/files.h"

using namespace ditto;
using formats::Picture;
using report::make_sheet;
using report::to_pictures;

namespace {

std::vector<uint8_t> pixels_of(const std::vector<double>& values) {
  const auto image = torch::tensor(values, torch::kDouble).reshape({1, 1, 1, -1});
  return to_pictures(image).front().pixels;
}

Picture plain(int width, int height, int channels, uint8_t value) {
  return {width, height, channels, std::vector<uint8_t>(static_cast<size_t>(width * height * channels), value)};
}

const uint8_t* pixel_of(const Picture& picture, int x, int y) {
  return &picture.pixels[static_cast<size_t>((y * picture.width + x) * picture.channels)];
}

}  // namespace

TEST_CASE("-1 is black, 1 is white, and what lies beyond is held") {
  CHECK(pixels_of({-1, 1, -3, 3}) == std::vector<uint8_t>{0, 255, 0, 255});
}

TEST_CASE("a pixel is rounded to the nearest integer, halves to the even one") {
  // 127.5 x + 127.5 is 127.5, 0.5, 1.5, and a little over 0.5
  CHECK(pixels_of({0, 0.5 / 127.5 - 1, 1.5 / 127.5 - 1, 0.51 / 127.5 - 1}) == std::vector<uint8_t>{128, 0, 2, 1});
}

TEST_CASE("every byte survives the way to -1 … 1 and back, in every precision that holds it") {
  const auto bytes = torch::arange(256, torch::kDouble);
  const auto values = (bytes / 127.5 - 1).reshape({1, 1, 16, 16});
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const auto back = to_pictures(values.to(dtype)).front().pixels;
    for (size_t i = 0; i < 256; ++i) CHECK(back[i] == i);
  }
}

TEST_CASE("a value that is no number is black") { CHECK(pixels_of({std::nan("")}) == std::vector<uint8_t>{0}); }

TEST_CASE("colours are put side by side for each pixel, and pictures keep their order") {
  auto images = torch::full({2, 3, 2, 4}, -1.0);
  images[1].select(0, 2).fill_(1);  // the second one is blue
  const auto pictures = to_pictures(images.to(torch::kBFloat16));
  REQUIRE(pictures.size() == 2);
  CHECK(pictures[0].width == 4);
  CHECK(pictures[0].height == 2);
  CHECK(pictures[0].pixels == std::vector<uint8_t>(24, 0));
  for (int x = 0; x < 4; ++x)
    CHECK(std::equal(pixel_of(pictures[1], x, 1), pixel_of(pictures[1], x, 1) + 3, "\0\0\xff",
                     [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); }));
}

TEST_CASE("latents are refused, with what to do") {
  const auto message = test::error_of(ErrorKind::shape, [] { to_pictures(torch::zeros({2, 4, 8, 8})); });
  CHECK(test::contains(message, "[2, 4, 8, 8]"));
  CHECK(test::contains(message, "encoder.image"));
  CHECK_FALSE(test::error_of(ErrorKind::shape, [] { to_pictures(torch::zeros({2, 1, 8, 8}, torch::kLong)); }).empty());
  CHECK_FALSE(test::error_of(ErrorKind::shape, [] { make_sheet({}); }).empty());
}

TEST_CASE("pictures of eight pixels get cells of at least 64, by whole blocks") {
  Picture digit = plain(8, 8, 1, 0);
  digit.pixels[0] = 200;
  const Picture sheet = make_sheet(std::vector{digit}, {.gap = 0});
  CHECK(sheet.width == 64);
  CHECK(*pixel_of(sheet, 0, 0) == 200);
  CHECK(*pixel_of(sheet, 7, 7) == 200);
  CHECK(*pixel_of(sheet, 8, 7) == 0);
  CHECK(*pixel_of(sheet, 7, 8) == 0);
  CHECK(make_sheet(std::vector{plain(9, 9, 1, 0)}, {.gap = 0}).width == 72);
  CHECK(make_sheet(std::vector{plain(100, 100, 1, 0)}, {.gap = 0}).width == 100);
}

TEST_CASE("a sheet is filled row by row") {
  std::vector<Picture> pictures;
  for (int i = 0; i < 5; ++i) pictures.push_back(plain(64, 64, 1, static_cast<uint8_t>(10 * i + 10)));
  const Picture sheet = make_sheet(pictures, {.columns = 3, .gap = 2});
  CHECK(sheet.width == 3 * 66 + 2);
  CHECK(sheet.height == 2 * 66 + 2);
  CHECK(*pixel_of(sheet, 2, 2) == 10);
  CHECK(*pixel_of(sheet, 2 + 2 * 66, 2) == 30);
  CHECK(*pixel_of(sheet, 2, 2 + 66) == 40);
  CHECK(*pixel_of(sheet, 2 + 66, 2 + 66) == 50);
  CHECK(*pixel_of(sheet, 2 + 2 * 66, 2 + 66) == 128);  // nothing there
  CHECK(*pixel_of(sheet, 0, 0) == 128);
}

TEST_CASE("columns that are not given make the sheet nearly square") {
  const std::vector<Picture> pictures(16, plain(64, 64, 1, 0));
  const Picture sheet = make_sheet(pictures, {.gap = 0});
  CHECK(sheet.width == 4 * 64);
  CHECK(sheet.height == 4 * 64);
}

TEST_CASE("pictures of different sizes and channels share one sheet, each in the middle of its cell") {
  Picture colour = plain(64, 64, 3, 0);
  const Picture sheet = make_sheet(std::vector{colour, plain(32, 64, 1, 90)}, {.columns = 2, .gap = 0});
  CHECK(sheet.channels == 3);
  CHECK(sheet.width == 128);
  CHECK(sheet.height == 64);
  CHECK(*pixel_of(sheet, 64 + 15, 10) == 128);
  CHECK(*pixel_of(sheet, 64 + 16, 10) == 90);
  CHECK(*(pixel_of(sheet, 64 + 47, 10) + 2) == 90);
  CHECK(*pixel_of(sheet, 64 + 48, 10) == 128);
}

TEST_CASE("a sheet ends where a side would grow too long: fewer columns, and no more rows") {
  const std::vector<Picture> pictures(9, plain(64, 64, 1, 7));
  const Picture sheet = make_sheet(pictures, {.columns = 3, .gap = 2, .most_side = 140});
  CHECK(sheet.width == 2 * 66 + 2);
  CHECK(sheet.height == 2 * 66 + 2);
  CHECK(make_sheet(pictures, {.gap = 0, .most_side = 10}).width == 64);  // one picture is always there
}

TEST_CASE("of pictures one sheet is made, of videos one for each frame") {
  auto videos = torch::full({2, 3, 4, 8, 8}, -1.0);
  for (int64_t f = 0; f < 4; ++f) videos[1].select(1, f).fill_(static_cast<double>(f) / 2 - 1);
  const auto sheets = report::make_sheets(videos, {.columns = 2, .gap = 0});
  REQUIRE(sheets.size() == 4);
  for (size_t f = 0; f < 4; ++f) {
    CHECK(sheets[f].width == 128);
    CHECK(*pixel_of(sheets[f], 0, 0) == 0);
    CHECK(*pixel_of(sheets[f], 64, 0) == to_pictures(videos.select(2, static_cast<int64_t>(f)))[1].pixels[0]);
  }
  CHECK(report::make_sheets(videos.select(2, 0)).size() == 1);
}

TEST_CASE("a picture carries the settings that made it") {
  const std::string settings = R"({"seed":7,"prompt":"ein Fuß"})";
  const auto png = formats::encode_png(plain(2, 2, 1, 0), report::settings_text(settings));
  const auto text = formats::read_png_text(png, "test");
  REQUIRE(text.size() == 2);
  CHECK(text[0].first == "Software");
  CHECK(text[1] == std::pair<std::string, std::string>("ditto", settings));
}
