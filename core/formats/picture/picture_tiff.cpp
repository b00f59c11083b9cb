// TIFF by libtiff; of one page. Samples beyond the colours, of which libtiff knows less than TIFF 6.0 says (section 18,
// ExtraSamples), are read here.
#include <ditto/error.h>
#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/formats/limits.h"
#include "core/formats/picture/picture_codecs.h"
#include "core/formats/picture/picture_colour.h"
#include "core/formats/picture/tiff_directory.h"

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
    one_page();
    const Bands bands = bands_of(photometric);
    if (want == Want::header) return picture;
    bands.extra() || is_plain_tiles(bands) ? read_bands(picture, bands) : read_pixels(picture);
    std::uint32_t bytes = 0;
    const void* profile = nullptr;
    if (TIFFGetField(tiff_.get(), TIFFTAG_ICCPROFILE, &bytes, &profile) == 1)
      ToSrgb({static_cast<const std::byte*>(profile), bytes}, grey ? Colours::grey : Colours::rgb,
             count_pixels(picture))
          .convert(picture.pixels);
    return picture;
  }

 private:
  // The samples of a pixel: colours, and what else there is.
  struct Bands {
    int colours = 0, all = 0, bits = 0;
    int opacity = -1;  // which one it is
    bool is_multiplied = false, is_inverted = false, is_palette = false;
    bool extra() const { return all > colours; }
  };

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

  // As Pillow has it: a fourth sample beside red, green and blue of which the file says nothing is opacity; one that it
  // calls unspecified (infrared, a mask) is not, and falls away. libtiff takes either for opacity.
  Bands bands_of(std::uint16_t photometric) const {
    const bool grey = photometric == PHOTOMETRIC_MINISBLACK || photometric == PHOTOMETRIC_MINISWHITE;
    const bool palette = photometric == PHOTOMETRIC_PALETTE, rgb = photometric == PHOTOMETRIC_RGB;
    Bands bands{rgb                                    ? 3
                : grey || palette                      ? 1
                : photometric == PHOTOMETRIC_SEPARATED ? 4
                                                       : 0,
                number<std::uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1), number<std::uint16_t>(TIFFTAG_BITSPERSAMPLE, 1)};
    bands.is_inverted = photometric == PHOTOMETRIC_MINISWHITE;
    bands.is_palette = palette;
    if (bands.colours == 0) bands.colours = bands.all;  // libtiff refuses what it cannot read
    if (!bands.extra()) return bands;
    const auto memory = RandomFile::over(file_.bytes, file_.where);
    const auto directory = TiffDirectory::first(*memory);
    auto says = directory ? directory->numbers(TIFFTAG_EXTRASAMPLES) : std::vector<std::uint64_t>{};
    if (says.empty() && rgb && bands.all == 4) says = {EXTRASAMPLE_UNASSALPHA};
    const auto extra = static_cast<std::size_t>(bands.all - bands.colours);
    for (std::size_t i = 0; i < says.size() && bands.opacity < 0; ++i)
      if (says[i] != EXTRASAMPLE_UNSPECIFIED) {
        bands.opacity = bands.colours + static_cast<int>(i);
        bands.is_multiplied = says[i] == EXTRASAMPLE_ASSOCALPHA;
      }
    const bool is_known = says.size() == extra && (rgb || bands.opacity >= 0 || extra == 1 || bands.colours == 4);
    if (!is_known)
      fail("it has " + std::to_string(bands.all) + " samples a pixel, " + std::to_string(bands.colours) +
           " of them colours, and does not say what the others are (ExtraSamples)");
    const bool is_read = bands.colours == 4
                             ? bands.opacity < 0
                             : (bands.bits == 8 || (bands.bits == 16 && !palette)) &&
                                   number<std::uint16_t>(TIFFTAG_SAMPLEFORMAT, SAMPLEFORMAT_UINT) == SAMPLEFORMAT_UINT;
    if (!is_read)
      fail("it has " + std::to_string(bands.all) + " samples of " + std::to_string(bands.bits) +
           " bits a pixel, which are not read; save it as PNG");
    if (bands.colours == 4) bands.colours = bands.all;  // of inks libtiff passes over what is no ink
    return bands;
  }

  // libtiff 4.5's reader of whole pictures takes unpacked tiles of a multiple of 1024 bytes alone.
  bool is_plain_tiles(const Bands& bands) const {
    const auto photometric = number<std::uint16_t>(TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISBLACK);
    return TIFFIsTiled(tiff_.get()) != 0 && photometric <= PHOTOMETRIC_PALETTE && bands.bits == 8 &&
           number<std::uint16_t>(TIFFTAG_COMPRESSION, COMPRESSION_NONE) == COMPRESSION_NONE;
  }

  // libtiff gives four bytes a pixel, the last one opaque where there are no extra samples; turned as it is stored.
  void read_pixels(Picture& picture) {
    char reason[1024] = "";
    if (TIFFRGBAImageOK(tiff_.get(), reason) != 1) fail(reason);
    check_memory(file_, picture, 4 * count_pixels(picture) + block_bytes());
    const auto orientation = number<std::uint16_t>(TIFFTAG_ORIENTATION, ORIENTATION_TOPLEFT);
    auto& pixels = picture.pixels;
    pixels.resize(4 * count_pixels(picture));
    if (TIFFReadRGBAImageOriented(tiff_.get(), static_cast<std::uint32_t>(picture.width),
                                  static_cast<std::uint32_t>(picture.height),
                                  reinterpret_cast<std::uint32_t*>(pixels.data()), orientation, 1) != 1 ||
        !input_.error.empty())
      fail(input_.error);
    std::uint8_t* to = pixels.data();
    for (std::size_t i = 0; i < pixels.size(); i += 4)
      for (int c = 0; c < picture.channels; ++c) *to++ = pixels[i + static_cast<std::size_t>(c)];
    pixels.resize(pixels.size() / 4 * static_cast<std::size_t>(picture.channels));
  }

  void read_bands(Picture& picture, const Bands& bands) {
    const auto kept = static_cast<std::size_t>(bands.colours + (bands.opacity < 0 ? 0 : 1));
    const auto shown = static_cast<std::size_t>(picture.channels) + (bands.opacity < 0 ? 0 : 1);
    check_memory(file_, picture, count_pixels(picture) * (bands.is_palette ? kept + shown : kept) + block_bytes());
    auto& pixels = picture.pixels;
    pixels.resize(kept * count_pixels(picture));
    read_blocks(picture, bands, kept);
    if (bands.is_inverted)
      for (std::size_t i = 0; i < pixels.size(); i += kept) pixels[i] = static_cast<std::uint8_t>(255 - pixels[i]);
    if (bands.is_palette) pixels = in_colours(pixels, kept);
    if (bands.opacity < 0) return;
    if (!bands.is_multiplied) return over_white(pixels, picture.channels);
    auto to = pixels.begin();
    for (std::size_t i = 0; i < pixels.size(); i += shown)
      for (std::size_t c = 0; c + 1 < shown; ++c)
        *to++ = static_cast<std::uint8_t>(std::min(255, pixels[i + c] + 255 - pixels[i + shown - 1]));
    pixels.erase(to, pixels.end());
  }

  std::uint64_t block_bytes() const {
    return TIFFIsTiled(tiff_.get()) ? TIFFTileSize64(tiff_.get()) : TIFFStripSize64(tiff_.get());
  }

  // Tiles or strips, of all bands or of one after another.
  void read_blocks(Picture& picture, const Bands& bands, std::size_t kept) {
    TIFF* const tiff = tiff_.get();
    const bool is_tiled = TIFFIsTiled(tiff) != 0;
    const bool is_planar = number<std::uint16_t>(TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG) == PLANARCONFIG_SEPARATE;
    const auto width = static_cast<std::uint32_t>(picture.width), height = static_cast<std::uint32_t>(picture.height);
    const Block shape{is_tiled ? number<std::uint32_t>(TIFFTAG_TILEWIDTH, 0) : width,
                      is_tiled ? number<std::uint32_t>(TIFFTAG_TILELENGTH, 0)
                               : std::min(height, number<std::uint32_t>(TIFFTAG_ROWSPERSTRIP, height)),
                      is_planar ? 1 : bands.all};
    const std::uint64_t row = is_tiled ? TIFFTileRowSize64(tiff) : TIFFScanlineSize64(tiff);
    if (shape.width == 0 || shape.height == 0 ||
        row != std::uint64_t{shape.width} * static_cast<std::uint64_t>(shape.samples * bands.bits / 8))
      fail("its rows have an unexpected size");
    std::vector<std::uint8_t> block(block_bytes());
    for (int plane = 0; plane < (is_planar ? bands.all : 1); ++plane)
      for (std::uint32_t y = 0; y < height; y += shape.height)
        for (std::uint32_t x = 0; x < width; x += shape.width) {
          const auto bytes = static_cast<tmsize_t>(is_tiled ? block.size() : row * std::min(shape.height, height - y));
          const auto sample = static_cast<std::uint16_t>(plane);
          const auto got = is_tiled
                               ? TIFFReadEncodedTile(tiff, TIFFComputeTile(tiff, x, y, 0, sample), block.data(), bytes)
                               : TIFFReadEncodedStrip(tiff, TIFFComputeStrip(tiff, y, sample), block.data(), bytes);
          if (got < bytes || !input_.error.empty()) fail(input_.error);
          for (int i = 0; i < shape.samples; ++i) {
            const int band = is_planar ? plane : i;
            const int to = band < bands.colours ? band : band == bands.opacity ? bands.colours : -1;
            if (to >= 0) put(picture, block, shape, i, bands.bits, x, y, kept, static_cast<std::size_t>(to));
          }
        }
  }

  struct Block {
    std::uint32_t width, height;
    int samples;  // of a pixel
  };

  // One sample of a block's pixels to place `to` of the picture's, of which `kept` are a pixel.
  static void put(Picture& picture, const std::vector<std::uint8_t>& block, const Block& shape, int sample, int bits,
                  std::uint32_t left, std::uint32_t top, std::size_t kept, std::size_t to) {
    const auto width = static_cast<std::uint32_t>(picture.width), height = static_cast<std::uint32_t>(picture.height);
    const auto samples = static_cast<std::size_t>(shape.samples);
    for (std::uint32_t y = 0; y < std::min(shape.height, height - top); ++y)
      for (std::uint32_t x = 0; x < std::min(shape.width, width - left); ++x) {
        const std::size_t from = (std::size_t{y} * shape.width + x) * samples + static_cast<std::size_t>(sample);
        std::uint16_t value = 0;
        if (bits == 16) std::memcpy(&value, block.data() + 2 * from, 2);
        picture.pixels[((std::size_t{top} + y) * width + left + x) * kept + to] =
            bits == 16 ? static_cast<std::uint8_t>((value + 128) / 257) : block[from];
      }
  }

  std::vector<std::uint8_t> in_colours(const std::vector<std::uint8_t>& numbers, std::size_t kept) const {
    std::array<const std::uint16_t*, 3> map{};
    if (TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &map[0], &map[1], &map[2]) != 1) fail("it has no colours");
    constexpr std::size_t kColours = 256;
    const bool has_bytes = std::all_of(map.begin(), map.end(), [](const std::uint16_t* channel) {
      return std::all_of(channel, channel + kColours, [](std::uint16_t value) { return value < 256; });
    });  // as some programs write them
    std::vector<std::uint8_t> out;
    out.reserve(numbers.size() / kept * (kept + 2));
    for (std::size_t i = 0; i < numbers.size(); i += kept) {
      for (const auto* channel : map)
        out.push_back(static_cast<std::uint8_t>(channel[numbers[i]] / (has_bytes ? 1 : 257)));
      if (kept > 1) out.push_back(numbers[i + 1]);
    }
    return out;
  }

  const Encoded& file_;
  Input input_;
  std::unique_ptr<TIFF, Close> tiff_;
};

}  // namespace

Picture decode_tiff(const Encoded& file, Want want) {
  const char* why = why_no_picture(tiff_kind(*RandomFile::over(file.bytes, file.where)));
  if (why != nullptr)
    throw Error(ErrorKind::data, file.where, std::string("it is one of the ") + why,
                "save the picture as PNG, JPEG or TIFF with the camera's program");
  return TiffReader(file).read(want);
}

}  // namespace ditto::formats
