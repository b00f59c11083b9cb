// JPEG by libjpeg-turbo. Its errors come as longjmp, so the functions that call it hold nothing with a destructor.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
// jpeglib.h wants the two above first
#include <jpeglib.h>

#include <jerror.h>

#include <algorithm>
#include <cstdlib>

#include <ditto/error.h>

#include "core/formats/picture/exif.h"
#include "core/formats/picture/picture_codecs.h"
#include "core/formats/picture/picture_colour.h"
#include "core/formats/picture/picture_resize.h"

namespace ditto::formats {

namespace {

struct Errors {
  jpeg_error_mgr base;  // first, so that libjpeg's pointer to it is a pointer to this
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<Errors*>(jpeg->err);
  errors->base.format_message(jpeg, errors->text);
  std::longjmp(errors->jump, 1);
}

// Damage that libjpeg would paint over in grey. Other warnings (stray bytes between markers, odd version numbers)
// leave the pixels whole.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION: on_error(jpeg);
    default: return;
  }
}

// A scan of a few bytes visits every pixel: a small file of many would decode for minutes.
void limit_scans(j_common_ptr common) {
  if (!common->is_decompressor) return;
  const auto* jpeg = reinterpret_cast<j_decompress_ptr>(common);
  const std::uint64_t pixels = std::uint64_t{jpeg->image_width} * jpeg->image_height;
  const auto scans = static_cast<std::uint64_t>(jpeg->input_scan_number);
  if (scans <= limits::kJpegScans && scans * pixels <= limits::kJpegScannedPixels) return;
  auto* errors = reinterpret_cast<Errors*>(common->err);
  std::snprintf(errors->text, sizeof errors->text, "it has too many scans: over %d of %ux%u pixels",
                jpeg->input_scan_number - 1, jpeg->image_width, jpeg->image_height);
  std::longjmp(errors->jump, 1);
}

std::uint8_t times(unsigned a, unsigned b) { return static_cast<std::uint8_t>((a * b + 127) / 255); }

// Adobe's files hold inverted inks: 255 is no ink.
void cmyk_to_rgb(const std::uint8_t* in, std::uint8_t* out, unsigned pixels, bool inverted) {
  for (unsigned x = 0; x < pixels; ++x, in += 4, out += 3) {
    const unsigned flip = inverted ? 0 : 255;
    for (int c = 0; c < 3; ++c) out[c] = times(in[c] ^ flip, in[3] ^ flip);
  }
}

class JpegReader {
 public:
  explicit JpegReader(const Encoded& file) : file_(file) {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = on_error;
    errors_.base.emit_message = on_message;
    errors_.text[0] = '\0';
    check(try_start());
  }
  ~JpegReader() {
    std::free(profile_);
    jpeg_destroy_decompress(&jpeg_);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  Picture read(Want want) {
    check(try_header());
    const bool grey = jpeg_.num_components == 1;
    const bool inks = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    Picture picture = make_picture(file_, jpeg_.image_width, jpeg_.image_height, grey ? 1 : 3);
    if (want == Want::header) return picture;
    scale_down(picture);
    const std::size_t bytes = count_pixels(picture) * static_cast<std::size_t>(picture.channels);
    check_memory(file_, picture, bytes + coefficient_bytes());
    jpeg_.out_color_space = grey ? JCS_GRAYSCALE : inks ? JCS_CMYK : JCS_RGB;
    check(try_profile());
    const std::span<const std::byte> profile(reinterpret_cast<const std::byte*>(profile_), profile_bytes_);
    const ToSrgb colours(profile, grey ? Colours::grey : inks ? inks_stored() : Colours::rgb, count_pixels(picture));
    if (!inks && !colours && is_halved(picture)) {
      read_halved(picture, bytes / 4);
      return picture;
    }
    picture.pixels.resize(bytes);
    std::vector<std::uint8_t> ink_row(inks ? 4 * static_cast<std::size_t>(picture.width) : 0);
    check(try_pixels(picture.pixels.data(), inks ? ink_row.data() : nullptr, colours));
    if (!inks) colours.convert(picture.pixels);
    return picture;
  }

 private:
  void check(bool good) const {
    if (!good) throw Error(ErrorKind::data, file_.where, std::string("the JPEG does not decode: ") + errors_.text);
  }

  // Where a picture comes in several scans, libjpeg holds all coefficients, two bytes each, until the last.
  std::uint64_t coefficient_bytes() {
    std::uint64_t blocks = 0;
    for (int i = 0; i < jpeg_.num_components; ++i)
      blocks += std::uint64_t{jpeg_.comp_info[i].width_in_blocks} * jpeg_.comp_info[i].height_in_blocks;
    return jpeg_has_multiple_scans(&jpeg_) ? blocks * DCTSIZE2 * sizeof(JCOEF) : 0;
  }

  Colours inks_stored() const { return jpeg_.saw_Adobe_marker ? Colours::cmyk_inverted : Colours::cmyk; }

  void scale_down(Picture& picture) {
    unsigned part = 1;
    const auto shorter = static_cast<unsigned>(std::min(picture.width, picture.height));
    while (part < DCTSIZE && file_.covers > 0 && shorter >= 4 * part * static_cast<unsigned>(file_.covers)) part *= 2;
    jpeg_.scale_num = 1;
    jpeg_.scale_denom = part;
    check(try_scale());
    picture.width = static_cast<int>(jpeg_.output_width);
    picture.height = static_cast<int>(jpeg_.output_height);
  }

  // Of one that will be turned on its side, cover() takes the means of its rows first.
  bool is_halved(const Picture& picture) const {
    return file_.covers > 0 && picture.width % 2 == 0 && picture.height % 2 == 0 &&
           std::min(picture.width, picture.height) / 2 >= file_.covers &&
           !swaps_sides(orientation_of(file_.bytes, PictureFormat::jpeg));
  }

  // Two rows at a time, so that the whole picture is never there.
  void read_halved(Picture& picture, std::size_t bytes) {
    const std::size_t row_bytes = static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.channels);
    std::vector<std::uint8_t> room(3 * row_bytes);
    picture.pixels.resize(bytes + kBeyondHalved);
    check(try_halved(room.data(), row_bytes, picture.pixels.data()));
    picture.pixels.resize(bytes);
    picture.width /= 2;
    picture.height /= 2;
  }

  bool try_scale() {
    if (setjmp(errors_.jump)) return false;
    jpeg_calc_output_dimensions(&jpeg_);
    return true;
  }

  bool try_profile() {
    if (setjmp(errors_.jump)) return false;
    jpeg_read_icc_profile(&jpeg_, &profile_, &profile_bytes_);
    return true;
  }

  bool try_start() {
    if (setjmp(errors_.jump)) return false;
    jpeg_create_decompress(&jpeg_);
    progress_.progress_monitor = limit_scans;
    jpeg_.progress = &progress_;
    jpeg_save_markers(&jpeg_, JPEG_APP0 + 2, 0xFFFF);  // profiles
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.bytes.data()), file_.bytes.size());
    return true;
  }

  bool try_header() {
    if (setjmp(errors_.jump)) return false;
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  bool try_pixels(std::uint8_t* pixels, std::uint8_t* ink_row, const ToSrgb& colours) {
    if (setjmp(errors_.jump)) return false;
    jpeg_start_decompress(&jpeg_);
    const std::size_t row_bytes = static_cast<std::size_t>(jpeg_.output_width) * (jpeg_.num_components == 1 ? 1 : 3);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      std::uint8_t* row = pixels + jpeg_.output_scanline * row_bytes;
      JSAMPROW target = ink_row != nullptr ? ink_row : row;
      jpeg_read_scanlines(&jpeg_, &target, 1);
      if (ink_row == nullptr) continue;
      if (colours)
        colours.convert(ink_row, row, jpeg_.output_width);
      else
        cmyk_to_rgb(ink_row, row, jpeg_.output_width, jpeg_.saw_Adobe_marker != 0);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  bool try_halved(std::uint8_t* room, std::size_t row_bytes, std::uint8_t* pixels) {
    if (setjmp(errors_.jump)) return false;
    jpeg_start_decompress(&jpeg_);
    JSAMPROW rows[2] = {room, room + row_bytes};
    while (jpeg_.output_scanline < jpeg_.output_height) {
      const std::size_t y = jpeg_.output_scanline;
      jpeg_read_scanlines(&jpeg_, &rows[y % 2], 1);
      if (y % 2 == 1)
        halve_rows(rows[0], rows[1], row_bytes, static_cast<std::size_t>(jpeg_.output_components), room + 2 * row_bytes,
                   pixels + y / 2 * (row_bytes / 2));
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  const Encoded& file_;
  jpeg_decompress_struct jpeg_{};
  jpeg_progress_mgr progress_{};
  Errors errors_{};
  JOCTET* profile_ = nullptr;
  unsigned profile_bytes_ = 0;
};

}  // namespace

Picture decode_jpeg(const Encoded& file, Want want) { return JpegReader(file).read(want); }

}  // namespace ditto::formats
