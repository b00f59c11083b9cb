#include "upright.h"

#include <cstring>

#include <ditto/error.h>

namespace ffmpeg {

namespace {

using ditto::Error;
using ditto::ErrorKind;

// The same bits by any instructions; chroma is interpolated as it would be for a picture of its own size.
constexpr int kFlags = SWS_BILINEAR | SWS_ACCURATE_RND | SWS_BITEXACT | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
constexpr std::size_t kAligned = 64;

// Full range by another name.
AVPixelFormat without_j(int format) {
  switch (format) {
    case AV_PIX_FMT_YUVJ420P: return AV_PIX_FMT_YUV420P;
    case AV_PIX_FMT_YUVJ411P: return AV_PIX_FMT_YUV411P;
    case AV_PIX_FMT_YUVJ422P: return AV_PIX_FMT_YUV422P;
    case AV_PIX_FMT_YUVJ440P: return AV_PIX_FMT_YUV440P;
    case AV_PIX_FMT_YUVJ444P: return AV_PIX_FMT_YUV444P;
    default: return static_cast<AVPixelFormat>(format);
  }
}

// One that is not said is BT.601's, as FFmpeg's own tools have it.
int matrix_of(AVColorSpace space) {
  switch (space) {
    case AVCOL_SPC_BT709: return SWS_CS_ITU709;
    case AVCOL_SPC_FCC: return SWS_CS_FCC;
    case AVCOL_SPC_SMPTE240M: return SWS_CS_SMPTE240M;
    case AVCOL_SPC_BT2020_NCL: return SWS_CS_BT2020;
    default: return SWS_CS_ITU601;
  }
}

}  // namespace

Turn Turn::of(const std::int32_t* matrix, const std::string& place) {
  if (!matrix) return {};
  // A point (x, y) is shown at (x a + y c, x b + y d), in 1/65536.
  const auto sign = [&](int i) { return matrix[i] >= 65536 / 2 ? 1 : matrix[i] <= -65536 / 2 ? -1 : 0; };
  const int a = sign(0), b = sign(1), c = sign(3), d = sign(4);
  if (a != 0 && d != 0 && b == 0 && c == 0) return {false, a < 0, d < 0};
  if (b != 0 && c != 0 && a == 0 && d == 0) return {true, b < 0, c < 0};
  throw Error(ErrorKind::data, place, "is to be shown turned by an angle that is no quarter",
              "code it anew, upright: `ffmpeg -i FILE OUT.mp4` turns the frames");
}

void Upright::convert(const AVFrame& frame) {
  if (frame.color_trc == AVCOL_TRC_SMPTE2084 || frame.color_trc == AVCOL_TRC_ARIB_STD_B67)
    throw Error(ErrorKind::data, place_,
                std::string("has colours of a high dynamic range (") + av_color_transfer_name(frame.color_trc) + ")",
                "map its tones to BT.709 first");
  const int matrix = matrix_of(frame.colorspace);
  const auto format = without_j(frame.format);
  const int range = frame.color_range == AVCOL_RANGE_JPEG || format != frame.format ? 1 : 0;
  if (!sws_ || width_ != frame.width || height_ != frame.height || format_ != frame.format || matrix_ != matrix ||
      range_ != range) {
    sws_.reset(sws_getContext(frame.width, frame.height, format, frame.width, frame.height, AV_PIX_FMT_RGB24, kFlags,
                              nullptr, nullptr, nullptr));
    if (!sws_)
      throw Error(ErrorKind::data, place_,
                  std::string("has frames of a kind that is not converted: ") +
                      (av_get_pix_fmt_name(format) ? av_get_pix_fmt_name(format) : "unknown"));
    sws_setColorspaceDetails(sws_.get(), sws_getCoefficients(matrix), range, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0,
                             1 << 16, 1 << 16);
    width_ = frame.width;
    height_ = frame.height;
    format_ = frame.format;
    matrix_ = matrix;
    range_ = range;
    stride_ = (3 * static_cast<std::size_t>(width_) + kAligned - 1) / kAligned * kAligned;
    rgb_.assign(stride_ * static_cast<std::size_t>(height_) + kAligned, 0);  // it writes a few bytes beyond a row
    upright_.resize(3 * static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_));
  }
  std::uint8_t* rows[4] = {rgb_.data()};
  const int strides[4] = {static_cast<int>(stride_)};
  if (const int done = sws_scale(sws_.get(), frame.data, frame.linesize, 0, height_, rows, strides); done != height_)
    throw Error(ErrorKind::data, place_, "has a frame whose colours cannot be converted (" + reason(done) + ")");
}

ditto::VideoFrame Upright::of(const AVFrame& frame) {
  convert(frame);
  const auto height = static_cast<std::size_t>(height_), width = static_cast<std::size_t>(width_);
  const auto rows = turn_.transposed ? width : height, columns = turn_.transposed ? height : width;
  auto* out = upright_.data();
  for (std::size_t row = 0; row < rows; ++row) {
    if (!turn_.transposed && !turn_.from_right) {
      std::memcpy(out, rgb_.data() + stride_ * (turn_.from_below ? height - 1 - row : row), 3 * width);
      out += 3 * width;
      continue;
    }
    for (std::size_t column = 0; column < columns; ++column, out += 3) {
      auto x = turn_.transposed ? row : column, y = turn_.transposed ? column : row;
      if (turn_.from_right) x = width - 1 - x;
      if (turn_.from_below) y = height - 1 - y;
      std::memcpy(out, rgb_.data() + stride_ * y + 3 * x, 3);
    }
  }
  return {upright_, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
}

}  // namespace ffmpeg
