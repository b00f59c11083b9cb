// EXIF 2.32 (CIPA DC-008): a small TIFF file in a segment or chunk of its own.
#include "core/formats/picture/exif.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/limits.h"
#include "core/formats/picture/tiff_directory.h"

namespace ditto::formats {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kExifPrefix("Exif\0\0", 6), kJpegXmp("http://ns.adobe.com/xap/1.0/\0", 29);
constexpr std::string_view kPngXmp = "XML:com.adobe.xmp", kPngExif = "Raw profile type exif";
constexpr unsigned kOrientationTag = 0x0112, kXmpTag = 700;

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::uint64_t big(Bytes bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
  return value;
}

std::size_t little_of_four(Bytes bytes, std::size_t at) {
  std::size_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<std::size_t>(bytes[at + i]);
  return value;
}

bool starts_with(Bytes bytes, std::string_view text) { return text_of(bytes).starts_with(text); }

struct Marks {
  Bytes exif;
  std::string_view xmp;
};

// The segments before the pixels: FF, a type, a length that counts itself.
Marks marks_of_jpeg(Bytes file) {
  constexpr unsigned kApp1 = 0xE1, kScan = 0xDA, kEnd = 0xD9;
  Marks marks;
  for (std::size_t at = 2; at + 4 <= file.size() && file[at] == std::byte{0xFF};) {
    const auto type = std::to_integer<unsigned>(file[at + 1]);
    if (type == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    const auto length = static_cast<std::size_t>(big(file, at + 2, 2));
    if (type == kScan || type == kEnd || length < 2 || length > file.size() - at - 2) break;
    const Bytes body = file.subspan(at + 4, length - 2);
    if (type == kApp1 && marks.exif.empty() && starts_with(body, kExifPrefix)) marks.exif = body;
    if (type == kApp1 && starts_with(body, kJpegXmp)) marks.xmp = text_of(body.subspan(kJpegXmp.size()));
    at += 2 + length;
  }
  return marks;
}

std::string unpacked(std::string_view packed) {
  std::string text(limits::kPngTextBytes, '\0');
  uLongf bytes = text.size();
  if (uncompress(reinterpret_cast<Bytef*>(text.data()), &bytes, reinterpret_cast<const Bytef*>(packed.data()),
                 packed.size()) != Z_OK)
    bytes = 0;
  text.resize(bytes);
  return text;
}

// What a text chunk says behind its keyword. "": it cannot be read.
std::string text_in(std::string_view type, std::string_view rest) {
  if (type == "tEXt") return std::string(rest);
  if (type == "zTXt") return rest.starts_with('\0') ? unpacked(rest.substr(1)) : "";
  if (rest.size() < 2) return {};
  const bool is_packed = rest[0] != '\0', is_known = rest[1] == '\0';
  for (int i = 0; i < 2; ++i) {  // a language, and the keyword in it
    const auto end = rest.find('\0', i == 0 ? 2 : 0);
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
  return !is_packed ? std::string(rest) : is_known ? unpacked(rest) : "";
}

// "\nexif\n      30\n4578…": a name, how many bytes, and these in hexadecimal digits, as ImageMagick writes them.
std::string raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  std::string bytes;
  int high = -1;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0 && std::string_view(" \t\r\n").find(c) == std::string_view::npos) return {};
    if (digit < 0) continue;
    if (high >= 0) bytes += static_cast<char>(high << 4 | digit);
    high = high >= 0 ? -1 : digit;
  }
  return bytes;
}

// A chunk's length stands before its type, and a checksum behind it. Of several alike the last one counts, as in
// Pillow.
int orientation_of_png(Bytes file) {
  Bytes exif;
  std::pair<std::string_view, std::string_view> profile, xmp;  // a text chunk's type, and what is behind its keyword
  for (std::size_t at = 8; at + 12 <= file.size();) {
    const auto length = big(file, at, 4);
    if (length > file.size() - at - 12) break;
    const Bytes body = file.subspan(at + 8, length);
    const auto type = text_of(file.subspan(at + 4, 4)), text = text_of(body);
    if (type == "IEND") break;
    if (type == "eXIf") exif = body;
    if (type == "tEXt" || type == "zTXt" || type == "iTXt") {
      const auto keyword = text.substr(0, text.find('\0'));
      const auto rest = text.substr(std::min(text.size(), keyword.size() + 1));
      if (keyword == kPngExif) profile = {type, rest};
      if (keyword == kPngXmp) xmp = {type, rest};
    }
    at += 12 + length;
  }
  std::string unpacked_profile;
  if (exif.empty() && !profile.first.empty()) {
    unpacked_profile = raw_profile(text_in(profile.first, profile.second));
    exif = bytes_of(unpacked_profile);
  }
  if (const auto told = orientation_in_exif(exif)) return *told;
  return xmp.first.empty() ? 1 : orientation_in_xmp(text_in(xmp.first, xmp.second));
}

// A TIFF file is its own EXIF.
int orientation_of_tiff(Bytes file) {
  if (const auto told = orientation_in_exif(file)) return *told;
  const auto memory = RandomFile::over(file, "TIFF");
  const auto directory = TiffDirectory::first(*memory);
  return directory ? orientation_in_xmp(text_of(directory->bytes(kXmpTag))) : 1;
}

}  // namespace

std::optional<int> orientation_in_exif(Bytes exif) {
  for (int i = 0; i < 2 && starts_with(exif, kExifPrefix); ++i) exif = exif.subspan(kExifPrefix.size());
  const auto memory = RandomFile::over(exif, "EXIF");
  const auto directory = TiffDirectory::first(*memory);
  const auto value = directory ? directory->number(kOrientationTag) : std::nullopt;
  if (!value) return std::nullopt;
  return *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
}

// tiff:Orientation="6" or <tiff:Orientation>6<…
int orientation_in_xmp(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (auto at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at + 1)) {
    auto rest = xmp.substr(at + kName.size());
    if (!rest.starts_with("=\"") && !rest.starts_with('>')) continue;
    rest.remove_prefix(rest.front() == '>' ? 1 : 2);
    if (rest.empty() || rest.front() < '0' || rest.front() > '9') continue;
    return rest.front() >= '1' && rest.front() <= '8' ? rest.front() - '0' : 1;
  }
  return 1;
}

// A chunk's type stands first; lengths are even. What lies behind RIFF's own end is none of its chunks.
Bytes webp_chunk(Bytes file, std::string_view type) {
  if (file.size() >= 12) file = file.first(std::min<std::size_t>(file.size(), 8 + little_of_four(file, 4)));
  for (std::size_t at = 12; at + 8 <= file.size();) {
    const auto length = little_of_four(file, at + 4);
    if (length > file.size() - at - 8) break;
    if (starts_with(file.subspan(at), type)) return file.subspan(at + 8, length);
    at += 8 + length + length % 2;
  }
  return {};
}

int orientation_of(Bytes file, PictureFormat format) {
  if (format == PictureFormat::png) return orientation_of_png(file);
  if (format == PictureFormat::tiff) return orientation_of_tiff(file);
  Marks marks;
  if (format == PictureFormat::jpeg) marks = marks_of_jpeg(file);
  if (format == PictureFormat::webp) marks = {webp_chunk(file, "EXIF"), text_of(webp_chunk(file, "XMP "))};
  return orientation_in_exif(marks.exif).value_or(orientation_in_xmp(marks.xmp));
}

bool swaps_sides(int orientation) { return orientation >= 5; }

Picture upright(Picture stored, int orientation) {
  if (orientation == 1) return stored;
  const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Picture out{stored.width, stored.height, stored.channels, {}};
  if (swaps_sides(orientation)) std::swap(out.width, out.height);
  if (stored.pixels.empty()) return out;  // a header
  out.pixels.resize(stored.pixels.size());
  std::uint8_t* to = out.pixels.data();
  for (int v = 0; v < out.height; ++v)
    for (int u = 0; u < out.width; ++u) {
      int x = u, y = v;
      if (swaps_sides(orientation)) std::swap(x, y);
      if (flip_x) x = stored.width - 1 - x;
      if (flip_y) y = stored.height - 1 - y;
      const auto from = (static_cast<std::ptrdiff_t>(y) * stored.width + x) * stored.channels;
      to = std::copy_n(stored.pixels.data() + from, stored.channels, to);
    }
  return out;
}

}  // namespace ditto::formats
