// Colours of pictures to sRGB, by their ICC profiles and Little CMS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ditto::formats {

enum class Colours { grey, rgb, cmyk, cmyk_inverted };  // inverted: 255 is no ink

// Where there is nothing to do, it is false, and convert() leaves all as it is: no profile, a damaged one, one of other
// colours than these, or sRGB's own. Perceptual intent. `pixels`: how many will be converted; for few the quickest way
// to begin is taken, for many the quickest to go on.
class ToSrgb {
 public:
  ToSrgb(std::span<const std::byte> profile, Colours colours, std::size_t pixels, bool opacity = false);
  // Of a space by its primaries (x and y of red, green, blue and white) with sRGB's curve.
  ToSrgb(const float (&primaries)[8], std::size_t pixels, bool opacity);
  ~ToSrgb();
  ToSrgb(const ToSrgb&) = delete;
  ToSrgb& operator=(const ToSrgb&) = delete;

  explicit operator bool() const { return transform_ != nullptr; }
  void convert(std::vector<std::uint8_t>& pixels) const;                                // grey stays grey
  void convert(const std::uint8_t* inks, std::uint8_t* rgb, std::size_t pixels) const;  // never throws

 private:
  void start(void* profile, Colours colours, std::size_t pixels, bool opacity);
  void* transform_ = nullptr;
  std::size_t values_ = 0;  // of a pixel, in
};

}  // namespace ditto::formats
