#include "core/formats/picture/picture.h"

#include <ditto/error.h>

#include <algorithm>

#include "core/formats/file.h"
#include "core/formats/picture/exif.h"
#include "core/formats/picture/picture_codecs.h"

namespace ditto::formats {

namespace {

// As phones store their pictures, and some programs under the name of JPEG.
bool is_heic(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 12 || text.substr(4, 4) != "ftyp") return false;
  const auto brand = text.substr(8, 4);
  return brand == "mif1" || brand == "msf1" || brand.starts_with("hei") || brand.starts_with("hev");
}

Picture decode_as_stored(const Encoded& file, PictureFormat format, Want want) {
  switch (format) {
    case PictureFormat::png: return decode_png(file, want);
    case PictureFormat::jpeg: return decode_jpeg(file, want);
    case PictureFormat::webp: return decode_webp(file, want);
    case PictureFormat::avif: return decode_avif(file, want);
    case PictureFormat::tiff: return decode_tiff(file, want);
    case PictureFormat::gif: return decode_gif(file, want);
    case PictureFormat::bmp: return decode_bmp(file, want);
    case PictureFormat::unknown: break;
  }
  throw Error(ErrorKind::data, file.where,
              file.bytes.empty()    ? "the picture is empty"
              : is_heic(file.bytes) ? std::string("it is HEIC, whatever its name, and not ") + kPictureFormats
                                    : std::string("its first bytes are not those of ") + kPictureFormats,
              file.bytes.empty() ? "copy the file again, or remove it" : "convert the picture to one of them");
}

Picture decode_upright(const Encoded& file, Want want) {
  const auto format = sniff_picture(file.bytes);
  Picture stored = decode_as_stored(file, format, want);
  const int orientation = orientation_of(file.bytes, format);
  if (orientation != 1)
    check_memory(file, stored, stored.pixels.capacity() + stored.pixels.size());  // a turned copy beside it
  return upright(std::move(stored), orientation);
}

std::vector<std::uint8_t> grey_of(const std::vector<std::uint8_t>& rgb) {
  std::vector<std::uint8_t> grey(rgb.size() / 3);
  for (std::size_t i = 0; i < grey.size(); ++i)
    grey[i] = static_cast<std::uint8_t>((299 * rgb[3 * i] + 587 * rgb[3 * i + 1] + 114 * rgb[3 * i + 2] + 500) / 1000);
  return grey;
}

std::vector<std::uint8_t> rgb_of(const std::vector<std::uint8_t>& grey) {
  std::vector<std::uint8_t> rgb(3 * grey.size());
  for (std::size_t i = 0; i < rgb.size(); ++i) rgb[i] = grey[i / 3];
  return rgb;
}

bool is_bmp(std::string_view text) {
  constexpr std::string_view kHeaderSizes("\x0C\x28\x34\x38\x40\x6C\x7C", 7);  // each in four bytes
  return text.starts_with("BM") && text.size() >= 18 && kHeaderSizes.find(text[14]) != std::string_view::npos &&
         text.substr(15, 3) == std::string_view("\0\0\0", 3);
}

// The first box names what else the file is: "mif1" files are AVIF where "avif" stands among the rest.
bool is_avif(std::string_view text) {
  if (text.size() < 16 || text.substr(4, 4) != "ftyp") return false;
  const std::size_t end = std::min<std::size_t>(text.size(), static_cast<unsigned char>(text[3]));
  for (std::size_t at = 8; at + 4 <= end; at += 4)
    if (at != 12 && (text.substr(at, 4) == "avif" || text.substr(at, 4) == "avis")) return true;
  return false;
}

}  // namespace

void convert(Picture& picture, Channels channels) {
  if (channels == Channels::grey && picture.channels == 3) {
    picture.pixels = grey_of(picture.pixels);
    picture.channels = 1;
  } else if (channels == Channels::rgb && picture.channels == 1) {
    picture.pixels = rgb_of(picture.pixels);
    picture.channels = 3;
  }
}

PictureFormat sniff_picture(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return PictureFormat::png;
  if (text.starts_with("\xFF\xD8\xFF")) return PictureFormat::jpeg;
  if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP") return PictureFormat::webp;
  if (text.starts_with(std::string_view("II*\0", 4)) || text.starts_with(std::string_view("MM\0*", 4)) ||
      text.starts_with(std::string_view("II+\0", 4)) || text.starts_with(std::string_view("MM\0+", 4)))
    return PictureFormat::tiff;
  if (text.starts_with("GIF87a") || text.starts_with("GIF89a")) return PictureFormat::gif;
  if (is_avif(text)) return PictureFormat::avif;
  return is_bmp(text) ? PictureFormat::bmp : PictureFormat::unknown;
}

Picture decode_picture(std::span<const std::byte> bytes, std::string_view where, const DecodeOptions& options) {
  Picture picture = decode_upright({bytes, where, options.max_pixels, options.covers}, Want::pixels);
  convert(picture, options.channels);
  return picture;
}

Picture read_picture(const std::string& path, const DecodeOptions& options) {
  const std::string bytes = read_file(path, ErrorKind::data, limits::kMemberBytes);
  return decode_picture(std::as_bytes(std::span(bytes)), path, options);
}

Picture picture_size(std::span<const std::byte> bytes, std::string_view where, const DecodeOptions& options) {
  return decode_upright({bytes, where, options.max_pixels}, Want::header);
}

}  // namespace ditto::formats
