// BMP (Windows' bitmaps of every version, OS/2's first), without packing.
#include <ditto/error.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/formats/picture/picture_codecs.h"

namespace ditto::formats {

namespace {

constexpr std::size_t kFileHeader = 14, kCoreHeader = 12, kInfoHeader = 40;
enum Packing : std::uint32_t { kPlain = 0, kMasks = 3, kMasksWithOpacity = 6 };

class BmpReader {
 public:
  explicit BmpReader(const Encoded& file) : file_(file) {
    need(kFileHeader + 4);
    pixels_at_ = little(10, 4);
    header_ = little(kFileHeader, 4);
    need(kFileHeader + header_);
    if (header_ == kCoreHeader) {
      width_ = little(18, 2);
      height_ = little(20, 2);
      bits_ = little(24, 2);
    } else {
      if (header_ < kInfoHeader) fail("its header has " + std::to_string(header_) + " bytes");
      width_ = little(18, 4);
      const auto height = static_cast<std::int32_t>(little(22, 4));
      top_down_ = height < 0;
      height_ = static_cast<std::uint32_t>(top_down_ ? -static_cast<std::int64_t>(height) : height);
      bits_ = little(28, 2);
      packing_ = little(30, 4);
    }
    const bool masks = packing_ == kMasks || packing_ == kMasksWithOpacity;
    if (packing_ != kPlain && !masks)
      fail("it is packed in a way that is not read here (" + std::to_string(packing_) + ")");
    if (bits_ != 1 && bits_ != 4 && bits_ != 8 && bits_ != 16 && bits_ != 24 && bits_ != 32)
      fail("it has " + std::to_string(bits_) + " bits a pixel");
    if (masks && bits_ != 16 && bits_ != 32) fail("it has masks for " + std::to_string(bits_) + " bits a pixel");
    if (masks) read_masks();
    if (bits_ <= 8) read_palette();
  }

  Picture read(Want want) {
    Picture picture = make_picture(file_, width_, height_, is_grey() ? 1 : 3);
    if (want == Want::header) return picture;
    const std::size_t stride = (std::size_t{width_} * bits_ + 31) / 32 * 4;
    need(pixels_at_ + std::uint64_t{stride} * height_);
    const bool opacity = has_opacity(stride);
    const std::size_t values = opacity ? 4 : static_cast<std::size_t>(picture.channels);
    check_memory(file_, picture, count_pixels(picture) * values);
    picture.pixels.reserve(count_pixels(picture) * values);
    for (std::uint32_t y = 0; y < height_; ++y) {
      const std::size_t row = pixels_at_ + stride * (top_down_ ? y : height_ - 1 - y);
      for (std::uint32_t x = 0; x < width_; ++x) add_pixel(picture.pixels, row, x, values);
    }
    if (opacity) over_white(picture.pixels, 3);
    return picture;
  }

 private:
  using Rgb = std::array<std::uint8_t, 3>;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, file_.where, "the BMP does not decode: " + what, "save it as PNG");
  }
  void need(std::uint64_t bytes) const {
    if (bytes > file_.bytes.size())
      throw Error(ErrorKind::data, file_.where,
                  "the BMP does not decode: " + std::to_string(bytes) + " bytes are needed, and it has " +
                      std::to_string(file_.bytes.size()),
                  "the file was cut off or is damaged");
  }
  std::uint32_t little(std::size_t at, std::size_t size) const {
    std::uint32_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(file_.bytes[at + i]);
    return value;
  }

  // Inside of newer headers, or behind the one of 40 bytes: at the same place.
  void read_masks() {
    const std::size_t count = header_ >= 56 || packing_ == kMasksWithOpacity ? 4 : 3;
    need(kFileHeader + kInfoHeader + 4 * count);
    for (std::size_t i = 0; i < count; ++i) masks_[i] = little(kFileHeader + kInfoHeader + 4 * i, 4);
  }

  void read_palette() {
    const std::size_t entry = header_ == kCoreHeader ? 3 : 4, at = kFileHeader + header_;
    std::size_t used = header_ == kCoreHeader ? 0 : little(46, 4);
    if (used == 0 || used > std::size_t{1} << bits_) used = std::size_t{1} << bits_;
    need(at + entry * used);
    palette_.resize(std::size_t{1} << bits_);  // a number beyond what is there is black
    for (std::size_t i = 0; i < used; ++i)
      for (std::size_t c = 0; c < 3; ++c)
        palette_[i][c] = std::to_integer<std::uint8_t>(file_.bytes[at + entry * i + 2 - c]);
  }

  // There is no other way to be grey.
  bool is_grey() const {
    return !palette_.empty() && std::all_of(palette_.begin(), palette_.end(), [](const Rgb& colour) {
      return colour[0] == colour[1] && colour[1] == colour[2];
    });
  }

  // Many programs leave the fourth byte at 0 everywhere, and mean a picture that is seen.
  bool has_opacity(std::size_t stride) const {
    if (bits_ != 32 || masks_[3] == 0) return false;
    for (std::size_t at = pixels_at_; at < pixels_at_ + stride * height_; at += 4)
      if (little(at, 4) & masks_[3]) return true;
    return false;
  }

  // The bits under a mask, as 0 … 255.
  static std::uint8_t under(std::uint32_t value, std::uint32_t mask) {
    if (mask == 0) return 0;
    const int shift = std::countr_zero(mask);
    const std::uint64_t most = mask >> shift;
    return static_cast<std::uint8_t>((((value & mask) >> shift) * std::uint64_t{255} + most / 2) / most);
  }

  void add_pixel(std::vector<std::uint8_t>& out, std::size_t row, std::uint32_t x, std::size_t values) const {
    if (bits_ <= 8) {
      const std::size_t bit = std::size_t{x} * bits_;
      const auto byte = std::to_integer<unsigned>(file_.bytes[row + bit / 8]);
      const Rgb& colour = palette_[byte >> (8 - bits_ - bit % 8) & ((1U << bits_) - 1)];
      out.insert(out.end(), colour.begin(), colour.begin() + static_cast<std::ptrdiff_t>(values));
    } else if (bits_ == 24 || (bits_ == 32 && packing_ == kPlain)) {
      const std::size_t at = row + std::size_t{x} * (bits_ / 8);
      for (const std::size_t c : {2, 1, 0}) out.push_back(std::to_integer<std::uint8_t>(file_.bytes[at + c]));
    } else {
      const std::uint32_t value = little(row + std::size_t{x} * (bits_ / 8), bits_ / 8);
      for (std::size_t c = 0; c < values; ++c) out.push_back(under(value, masks_[c]));
    }
  }

  const Encoded& file_;
  std::size_t pixels_at_ = 0, header_ = 0;
  std::uint32_t width_ = 0, height_ = 0, bits_ = 0, packing_ = kPlain;
  bool top_down_ = false;
  std::vector<Rgb> palette_;
  std::array<std::uint32_t, 4> masks_{0x7C00, 0x03E0, 0x001F, 0};  // of 16 bits where it says none
};

}  // namespace

Picture decode_bmp(const Encoded& file, Want want) { return BmpReader(file).read(want); }

}  // namespace ditto::formats
