// TIFF by libtiff; of one page.
#include <ditto/error.h>
#include <tiffio.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/formats/exif.h"
#include "core/formats/picture_codecs.h"
#include "core/formats/picture_colour.h"

namespace ditto::formats {

namespace {

struct Input {
  std::span<const std::byte> bytes;
  std::uint64_t at = 0;
  std::string error;  // the first one
};

Input& input_of(thandle_t handle) { return *static_cast<Input*>(handle); }

tmsize_t read_bytes(thandle_t handle, void* to, tmsize_t count) {
  Input& input = input_of(handle);
  const auto left = input.at < input.bytes.size() ? input.bytes.size() - input.at : 0;
  const auto size = std::min(static_cast<std::size_t>(count), left);
  std::memcpy(to, input.bytes.data() + (left > 0 ? input.at : 0), size);
  input.at += size;
  return static_cast<tmsize_t>(size);
}

tmsize_t write_nothing(thandle_t, void*, tmsize_t) { return -1; }
int close_nothing(thandle_t) { return 0; }
toff_t size_of(thandle_t handle) { return input_of(handle).bytes.size(); }

toff_t seek(thandle_t handle, toff_t offset, int from) {
  Input& input = input_of(handle);
  const auto start = from == SEEK_CUR ? input.at : from == SEEK_END ? input.bytes.size() : 0;
  return input.at = start + offset;
}

int keep_error(TIFF*, void* user, const char*, const char* format, va_list arguments) {
  auto& error = static_cast<Input*>(user)->error;
  if (!error.empty()) return 1;
  char text[200];
  std::vsnprintf(text, sizeof text, format, arguments);
  error = text;
  return 1;
}

int no_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }

struct Close {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
};

class TiffReader {
 public:
  explicit TiffReader(const Encoded& file) : file_(file), input_{file.bytes, 0, {}} {
    const std::unique_ptr<TIFFOpenOptions, Close> options(TIFFOpenOptionsAlloc());
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), limits::kPictureBytes);
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), keep_error, &input_);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), no_warning, nullptr);
    tiff_.reset(TIFFClientOpenExt("", "rm", &input_, read_bytes, write_nothing, seek, close_nothing, size_of, nullptr,
                                  nullptr, options.get()));
    if (!tiff_) fail(input_.error);
  }

  Picture read(Want want) {
    const auto photometric = number<std::uint16_t>(TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISBLACK);
    const bool grey = photometric == PHOTOMETRIC_MINISBLACK || photometric == PHOTOMETRIC_MINISWHITE;
    Picture picture = make_picture(file_, number<std::uint32_t>(TIFFTAG_IMAGEWIDTH, 0),
                                   number<std::uint32_t>(TIFFTAG_IMAGELENGTH, 0), grey ? 1 : 3);
    const auto orientation = number<std::uint16_t>(TIFFTAG_ORIENTATION, ORIENTATION_TOPLEFT);
    const int exif = orientation >= 1 && orientation <= 8 ? orientation : 1;
    one_page();
    if (want == Want::pixels) {
      read_pixels(picture, static_cast<std::uint16_t>(exif));
      std::uint32_t bytes = 0;
      const void* profile = nullptr;
      if (TIFFGetField(tiff_.get(), TIFFTAG_ICCPROFILE, &bytes, &profile) == 1)
        ToSrgb({static_cast<const std::byte*>(profile), bytes}, grey ? Colours::grey : Colours::rgb,
               count_pixels(picture))
            .convert(picture.pixels);
    }
    return upright(std::move(picture), exif);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorKind::data, file_.where,
                "the TIFF does not decode: " + (reason.empty() ? "it is damaged" : reason));
  }

  template <class Number>
  Number number(std::uint32_t tag, Number missing) const {
    Number value = missing;
    return TIFFGetFieldDefaulted(tiff_.get(), tag, &value) == 1 ? value : missing;
  }

  // Cameras put small copies behind the picture; scanners and fax machines more pages.
  void one_page() {
    while (TIFFReadDirectory(tiff_.get()) == 1)
      if ((number<std::uint32_t>(TIFFTAG_SUBFILETYPE, 0) & (FILETYPE_REDUCEDIMAGE | FILETYPE_MASK)) == 0)
        throw Error(ErrorKind::data, file_.where, "it has several pages; a single picture is expected");
    if (TIFFSetDirectory(tiff_.get(), 0) != 1) fail(input_.error);
    input_.error.clear();  // of what stands behind the picture
  }

  // libtiff gives four bytes a pixel, opacity last and multiplied into the others already; turned as it is stored.
  void read_pixels(Picture& picture, std::uint16_t orientation) {
    char reason[1024] = "";
    if (TIFFRGBAImageOK(tiff_.get(), reason) != 1) fail(reason);
    const auto row = TIFFIsTiled(tiff_.get()) ? TIFFTileSize64(tiff_.get()) : TIFFStripSize64(tiff_.get());
    check_memory(file_, picture, (orientation == 1 ? 4 : 7) * count_pixels(picture) + row);  // a turned copy beside it
    auto& pixels = picture.pixels;
    pixels.resize(4 * count_pixels(picture));
    if (TIFFReadRGBAImageOriented(tiff_.get(), static_cast<std::uint32_t>(picture.width),
                                  static_cast<std::uint32_t>(picture.height),
                                  reinterpret_cast<std::uint32_t*>(pixels.data()), orientation, 1) != 1 ||
        !input_.error.empty())
      fail(input_.error);
    std::uint8_t* to = pixels.data();
    for (std::size_t i = 0; i < pixels.size(); i += 4) {
      const int white = 255 - pixels[i + 3];
      for (int c = 0; c < picture.channels; ++c)
        *to++ = static_cast<std::uint8_t>(std::min(255, pixels[i + static_cast<std::size_t>(c)] + white));
    }
    pixels.resize(pixels.size() / 4 * static_cast<std::size_t>(picture.channels));
  }

  const Encoded& file_;
  Input input_;
  std::unique_ptr<TIFF, Close> tiff_;
};

}  // namespace

Picture decode_tiff(const Encoded& file, Want want) { return TiffReader(file).read(want); }

}  // namespace ditto::formats
