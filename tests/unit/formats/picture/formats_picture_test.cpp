// Pictures: decoded as another program decodes them, written and read back, and refused when they are damaged.
#include "core/formats/picture/picture.h"
#include "core/formats/picture/picture_resize.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "core/formats/tensor/safetensors.h"
#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;

namespace {

std::string picture_refusal(std::string_view bytes, const DecodeOptions& options = {}) {
  return error_of(ErrorKind::data, [&] { decode_picture(as_bytes(bytes), "a.tar:7.png", options); });
}

Picture pattern(int width, int height, int channels) {
  Picture picture{width, height, channels, {}};
  for (int i = 0; i < width * height * channels; ++i) picture.pixels.push_back(static_cast<std::uint8_t>(i * 7));
  return picture;
}

// The place of a chunk's length field.
std::size_t chunk(const std::string& png, const std::string& type) { return png.find(type) - 4; }

std::string encoded(const Picture& picture, const PngText& text = {}) {
  const auto bytes = encode_png(picture, text);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("pictures decode to another program's pixels") {
  const SafetensorsReader expected = SafetensorsReader::open(golden_format("pictures.safetensors").string());
  REQUIRE(expected.entries().size() == 28);
  for (const SafetensorsEntry& entry : expected.entries()) {
    CAPTURE(entry.name);
    const Picture picture = read_picture(golden_format(entry.name).string());
    CHECK(entry.shape == std::vector<std::int64_t>{picture.height, picture.width, picture.channels});
    const auto data = expected.read(entry);
    REQUIRE(picture.pixels.size() == data.size());
    // Transparency and 16 bits may round the other way; JPEG's inks pass through another program's formula.
    const auto has = [&](const char* part) { return contains(entry.name, part); };
    const int tolerance = has("avif")                              ? 3
                          : has("a.") || has("alpha") || has("16") ? 1
                          : has("jpg") || has("p3") || has("cmyk") ? 2
                                                                   : 0;
    int largest = 0;
    for (std::size_t i = 0; i < data.size(); ++i)
      largest = std::max(largest, std::abs(int{picture.pixels[i]} - std::to_integer<int>(data[i])));
    CHECK(largest <= tolerance);
    const std::string bytes = read_text(golden_format(entry.name));
    const Picture size = picture_size(as_bytes(bytes), entry.name);
    CHECK(size.width == picture.width);
    CHECK(size.height == picture.height);
    CHECK(size.channels == picture.channels);
    CHECK(size.pixels.empty());
  }
}

TEST_CASE("pictures stand as EXIF says, as another program turns them") {
  const SafetensorsReader expected = SafetensorsReader::open(golden_format("orientations.safetensors").string());
  REQUIRE(expected.entries().size() == 10);
  for (const SafetensorsEntry& entry : expected.entries()) {
    CAPTURE(entry.name);
    const Picture picture = read_picture(golden_format(entry.name).string());
    CHECK(entry.shape == std::vector<std::int64_t>{picture.height, picture.width, picture.channels});
    const auto pixels = expected.read(entry);
    REQUIRE(picture.pixels.size() == pixels.size());
    int largest = 0;
    for (std::size_t i = 0; i < pixels.size(); ++i)
      largest = std::max(largest, std::abs(int{picture.pixels[i]} - std::to_integer<int>(pixels[i])));
    CHECK(largest <= (contains(entry.name, "jpg") ? 2 : 0));
    const std::string bytes = read_text(golden_format(entry.name));
    const Picture size = picture_size(as_bytes(bytes), entry.name);
    CHECK(size.width == picture.width);
    CHECK(size.height == picture.height);
  }
}

TEST_CASE("an orientation is read in both byte orders; what cannot be read leaves the picture as it is stored") {
  const std::string jpeg = read_text(golden_format("rgb.jpg"));
  const Picture stored = decode_picture(as_bytes(jpeg), "x");
  REQUIRE(stored.width != stored.height);
  const auto width_with = [&](const std::string& tiff) {
    const std::string body = std::string("Exif\0\0", 6) + tiff;
    const auto length = static_cast<char>(body.size() + 2);
    const std::string tagged = jpeg.substr(0, 2) + std::string("\xFF\xFF\xE1\0", 4) + length + body + jpeg.substr(2);
    return decode_picture(as_bytes(tagged), "x").width;
  };
  const std::string little("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0", 26);
  const std::string big("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0", 26);
  CHECK(width_with(little) == stored.height);
  CHECK(width_with(big) == stored.height);
  for (const auto& whole : {little, big})
    for (std::size_t length = 0; length < 22; ++length) CHECK(width_with(whole.substr(0, length)) == stored.width);
  for (const auto& [at, byte] : {std::pair{18, 9}, {18, 0}, {4, 0x7F}, {7, 0x7F}, {10, 0x13}, {12, 2}, {0, 'X'}}) {
    std::string wrong = little;
    wrong[static_cast<std::size_t>(at)] = static_cast<char>(byte);
    CHECK(width_with(wrong) == stored.width);
  }
}

TEST_CASE("grey and colour are converted when asked for") {
  const Picture grey = read_picture(golden_format("grey.png").string(), {Channels::rgb});
  CHECK(grey.channels == 3);
  CHECK(grey.pixels[3] == grey.pixels[5]);
  Picture colour{1, 1, 3, {255, 0, 0}};
  const std::string red = encoded(colour);
  CHECK(decode_picture(as_bytes(red), "x", {Channels::grey}).pixels == std::vector<std::uint8_t>{76});
}

TEST_CASE("a PNG that was written reads back, with its texts") {
  for (const int channels : {1, 3}) {
    const Picture picture = pattern(17, 5, channels);
    const PngText text{{"seed", "42"},
                       {"prompt", "ein gro\u00dfer Hund \u72ac"},
                       {"settings", "{\"steps\": 50,\n \"g\": 2}"},
                       {"empty", ""}};
    const std::string png = encoded(picture, text);
    const Picture back = decode_picture(as_bytes(png), "x");
    CHECK(back.pixels == picture.pixels);
    CHECK(back.channels == channels);
    CHECK(read_png_text(as_bytes(png), "x") == text);
    CHECK(png == encoded(picture, text));
    CHECK(contains(png, "tEXtseed"));
    CHECK(contains(png, "iTXtprompt"));
  }
  const TemporaryFolder folder;
  write_png(folder / "a.png", pattern(2, 2, 3), {{"a", "b"}});
  CHECK(read_picture(folder / "a.png").pixels == pattern(2, 2, 3).pixels);
}

TEST_CASE("texts and pixels that no PNG can hold are refused") {
  const Picture picture = pattern(2, 2, 1);
  for (const std::string& key :
       {std::string(), std::string(80, 'a'), std::string(" a"), std::string("\u00e9"), std::string("a\n")})
    CHECK(contains(error_of(ErrorKind::data, [&] { encode_png(picture, {{key, "x"}}); }), "keyword"));
  CHECK(error_of(ErrorKind::data, [&] { encode_png(picture, {{"a", std::string(1, '\0')}}); }) != "");
  CHECK(error_of(ErrorKind::data, [&] { encode_png(picture, {{"a", "\xff"}}); }) != "");
  CHECK(error_of(ErrorKind::data, [&] { encode_png(Picture{2, 2, 3, {1, 2}}); }) != "");
  CHECK(error_of(ErrorKind::data, [&] { encode_png(Picture{0, 0, 3, {}}); }) != "");
  CHECK(contains(error_of(ErrorKind::data, [&] { write_png("/nowhere/a.png", picture); }), "/nowhere/a.png"));
}

TEST_CASE("formats are told by their first bytes") {
  CHECK(sniff_picture(as_bytes(read_text(golden_format("rgb.png")))) == PictureFormat::png);
  CHECK(sniff_picture(as_bytes(read_text(golden_format("rgb.jpg")))) == PictureFormat::jpeg);
  CHECK(sniff_picture(as_bytes(read_text(golden_format("rgb.webp")))) == PictureFormat::webp);
  CHECK(sniff_picture(as_bytes("GIF88a")) == PictureFormat::unknown);
  CHECK(contains(picture_refusal(""), "a.tar:7.png: the picture is empty"));
  CHECK(contains(picture_refusal("GIF88a"), "not those of PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP"));
  CHECK(contains(picture_refusal("RIFF"), "not those of"));
  CHECK(contains(picture_refusal(std::string("\0\0\0\x18"
                                             "ftypheic\0\0\0\0mif1heic",
                                             24)),
                 "it is HEIC, whatever its name"));
}

TEST_CASE("every cut of a picture is refused") {
  for (const char* name : {"rgb.png", "grey16.png", "palette.png", "rgb.jpg", "progressive.jpg", "cmyk.jpg", "rgb.webp",
                           "rgba.webp", "palette.gif", "masks.bmp", "rgb.bmp"}) {
    const std::string whole = read_text(golden_format(name));
    for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
      CAPTURE(name);
      CAPTURE(length);
      CHECK(picture_refusal(whole.substr(0, length)) != "");
    }
  }
}

TEST_CASE("every flipped bit of a picture is an error or a picture of the limits") {
  const DecodeOptions options{Channels::as_stored, 1u << 16};
  for (const char* name : {"rgba.png", "palette.png", "p3.png", "rgb.jpg", "progressive.jpg", "rgba.webp",
                           "oriented_6.jpg", "rgb.tif", "rgba.tif", "cmyk.tif", "transparent.gif", "palette.bmp",
                           "masks.bmp", "grey.avif", "oriented_6.png", "oriented_8.webp"}) {
    const std::string whole = read_text(golden_format(name));
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      try {
        const Picture picture = decode_picture(as_bytes(flipped), name, options);
        const auto pixels = static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.height);
        REQUIRE(pixels <= options.max_pixels);
        REQUIRE(picture.pixels.size() == pixels * static_cast<std::size_t>(picture.channels));
      } catch (const ditto::Error& error) {
        REQUIRE(error.kind() == ErrorKind::data);
      }
    }
  }
}

TEST_CASE("damaged PNGs say what is wrong") {
  const std::string good = encoded(pattern(8, 8, 3), {{"a", "b"}});
  std::string bad = good;
  const std::size_t checksum = chunk(bad, "IEND") - 1;  // the last byte of the pixels' chunk
  bad[checksum] = static_cast<char>(bad[checksum] ^ 1);
  CHECK(contains(picture_refusal(bad), "CRC"));
  bad = good;
  bad.replace(chunk(bad, "IHDR") + 8, 8, std::string("\0\0\xff\xff\0\0\xff\xff", 8));  // 65535 x 65535, wrong checksum
  CHECK(picture_refusal(bad) != "");
  CHECK(picture_refusal(good.substr(0, good.size() - 12)) != "");  // no IEND
  CHECK(contains(error_of(ErrorKind::data, [&] { read_png_text(as_bytes("\xFF\xD8\xFF"), "x"); }), "not a PNG"));
}

TEST_CASE("pictures over the limit are refused before they are decoded") {
  const std::string png = encoded(pattern(100, 100, 1));
  CHECK(contains(picture_refusal(png, {Channels::as_stored, 9999}), "100x100"));
  CHECK(picture_refusal(png, {Channels::as_stored, 10000}) == "");
  // A header that says 16000 x 16000 in a file of a hundred bytes.
  const std::string jpeg = read_text(golden_format("rgb.jpg"));
  std::string bomb = jpeg;
  const auto frame = bomb.find("\xFF\xC0");
  REQUIRE(frame != std::string::npos);
  bomb.replace(frame + 5, 4, "\x3E\x80\x3E\x80");
  CHECK(contains(picture_refusal(bomb), "16000x16000"));
}

TEST_CASE("an animation is no picture, and neither are several pages") {
  for (const char* name : {"animated.webp", "animated.gif", "animated.avif"})
    CHECK(contains(picture_refusal(read_text(golden_format(name))), "animation"));
  CHECK(contains(picture_refusal(read_text(golden_format("pages.tif"))), "several pages"));
}

TEST_CASE("a bitmap's masks, opacity and rows from the top are read") {
  const Picture picture = read_picture(golden_format("masks.bmp").string());
  CHECK(picture.pixels == read_picture(golden_format("rgba.png").string()).pixels);
}

TEST_CASE("a picture covers a smaller or larger square as ADM's crop does") {
  const SafetensorsReader expected = SafetensorsReader::open(golden_format("covered.safetensors").string());
  REQUIRE(expected.entries().size() == 4);
  for (const SafetensorsEntry& entry : expected.entries()) {
    CAPTURE(entry.name);
    const int side = std::stoi(entry.name);
    const Picture covered = cover(read_picture(golden_format("rgb.png").string()), side, side);
    CHECK(entry.shape == std::vector<std::int64_t>{covered.height, covered.width, 3});
    const auto data = expected.read(entry);
    REQUIRE(covered.pixels.size() == data.size());
    for (std::size_t i = 0; i < data.size(); ++i)
      CHECK(std::abs(int{covered.pixels[i]} - std::to_integer<int>(data[i])) <= 1);
  }
  for (const int channels : {1, 3}) {  // what is cut away is not made; what is left is the same
    const Picture tall = cover(pattern(7, 30, channels), 4, 4), tower = cover(pattern(7, 30, channels), 17, 4);
    REQUIRE(tower.pixels.size() == std::size_t{17} * 4 * static_cast<std::size_t>(channels));
    CHECK(std::equal(tall.pixels.begin(), tall.pixels.end(), tower.pixels.begin() + (17 - 4) / 2 * 4 * channels));
  }
  const Picture wide = cover(pattern(40, 20, 1), 10, 16);
  CHECK(wide.height == 10);
  CHECK(wide.width == 16);
}

TEST_CASE("a JPEG is decoded at a part of its size where no side becomes too small") {
  const std::string jpeg = read_text(golden_format("rgb.jpg"));  // 16 x 12
  const auto width_at = [&](int covers) { return decode_picture(as_bytes(jpeg), "x", {.covers = covers}).width; };
  CHECK(width_at(0) == 16);
  CHECK(width_at(7) == 16);
  CHECK(width_at(6) == 8);
  CHECK(width_at(3) == 4);
  CHECK(width_at(1) == 4);  // of 4 x 3, whose rows cannot be halved
}

TEST_CASE("a JPEG that is halved while it is decoded is covered as the whole one is") {
  for (const char* name : {"rgb.jpg", "grey.jpg", "progressive.jpg", "cmyk.jpg", "p3.jpg", "oriented_1.jpg",
                           "oriented_2.jpg", "oriented_3.jpg", "oriented_6.jpg", "oriented_8.jpg"}) {
    CAPTURE(name);
    const std::string jpeg = read_text(golden_format(name));
    const Picture whole = decode_picture(as_bytes(jpeg), "x");
    const int half = std::min(whole.width, whole.height) / 2;  // and too large for less than all of the DCT
    for (const int side : {half, half - 1}) {
      const Picture covered = cover(decode_picture(as_bytes(jpeg), "x", {.covers = side}), side, side);
      CHECK(covered.pixels == cover(whole, side, side).pixels);
    }
  }
}
