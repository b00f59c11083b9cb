#include "core/sample/grid.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <ditto/error.h>
#include <ditto/version.h>

namespace ditto::report {

using formats::Picture;

namespace {

constexpr uint8_t kGapGrey = 128;

uint8_t pixel(double x) {
  if (std::isnan(x)) return 0;
  return static_cast<uint8_t>(std::nearbyint(std::clamp(127.5 * x + 127.5, 0.0, 255.0)));
}

Picture to_rgb(const Picture& grey) {
  Picture out{grey.width, grey.height, 3, {}};
  out.pixels.reserve(3 * grey.pixels.size());
  for (const uint8_t value : grey.pixels) out.pixels.insert(out.pixels.end(), 3, value);
  return out;
}

Picture blank(int width, int height, int channels, uint8_t value) {
  const size_t size = static_cast<size_t>(width) * static_cast<size_t>(height) * static_cast<size_t>(channels);
  return {width, height, channels, std::vector<uint8_t>(size, value)};
}

void paste(const Picture& picture, Picture& onto, int left, int top) {
  const auto row = static_cast<size_t>(picture.width) * static_cast<size_t>(picture.channels);
  for (int y = 0; y < picture.height; ++y) {
    const auto to = (static_cast<size_t>(top + y) * static_cast<size_t>(onto.width) + static_cast<size_t>(left)) *
                    static_cast<size_t>(onto.channels);
    std::copy_n(picture.pixels.begin() + static_cast<ptrdiff_t>(row * static_cast<size_t>(y)), row,
                onto.pixels.begin() + static_cast<ptrdiff_t>(to));
  }
}

}  // namespace

std::vector<Picture> to_pictures(const torch::Tensor& images_BCHW) {
  const auto& images = images_BCHW;
  if (images.dim() != 4 || (images.size(1) != 1 && images.size(1) != 3) || !images.is_floating_point()) {
    std::ostringstream found;
    found << images.dtype() << " " << images.sizes();
    throw Error(ErrorKind::shape, "pictures", "found a tensor " + found.str() + ", expected floats [B, 1 or 3, H, W]",
                "latents are decoded by [encoder.image] first");
  }
  const auto pixels = images.detach().to(torch::kCPU, torch::kDouble).permute({0, 2, 3, 1}).contiguous();
  const auto count = static_cast<size_t>(images.size(1) * images.size(2) * images.size(3));
  std::vector<Picture> out;
  for (int64_t i = 0; i < images.size(0); ++i) {
    const double* from = pixels.data_ptr<double>() + static_cast<size_t>(i) * count;
    Picture picture{static_cast<int>(images.size(3)), static_cast<int>(images.size(2)),
                    static_cast<int>(images.size(1)), std::vector<uint8_t>(count)};
    std::transform(from, from + count, picture.pixels.begin(), pixel);
    out.push_back(std::move(picture));
  }
  return out;
}

Picture enlarge(const Picture& picture, int factor) {
  Picture out = blank(picture.width * factor, picture.height * factor, picture.channels, 0);
  const auto channels = static_cast<size_t>(picture.channels);
  auto to = out.pixels.begin();
  for (int y = 0; y < out.height; ++y) {
    const size_t row = static_cast<size_t>(y / factor) * static_cast<size_t>(picture.width);
    for (int x = 0; x < out.width; ++x) {
      const size_t from = (row + static_cast<size_t>(x / factor)) * channels;
      to = std::copy_n(picture.pixels.begin() + static_cast<ptrdiff_t>(from), channels, to);
    }
  }
  return out;
}

Picture make_sheet(std::span<const Picture> pictures, const SheetOptions& options) {
  int width = 0, height = 0, channels = 1;
  for (const Picture& picture : pictures) {
    width = std::max(width, picture.width);
    height = std::max(height, picture.height);
    channels = std::max(channels, picture.channels);
  }
  const int least = std::min(width, height);
  if (least == 0) throw Error(ErrorKind::shape, "sample sheet", "found no picture, or empty ones, expected some");
  const int factor = std::max(1, (options.min_cell + least - 1) / least);
  const int all = static_cast<int>(pictures.size());
  const int square = static_cast<int>(std::ceil(std::sqrt(all)));
  const int step_x = width * factor + options.gap, step_y = height * factor + options.gap;
  const auto at_most = [&](int wanted, int step) {
    return std::min(wanted, std::max(1, (options.most_side - options.gap) / step));
  };
  const int columns = at_most(std::min(all, options.columns > 0 ? options.columns : square), step_x);
  const int rows = at_most((all + columns - 1) / columns, step_y);
  const int count = std::min(all, rows * columns);
  Picture sheet = blank(columns * step_x + options.gap, rows * step_y + options.gap, channels, kGapGrey);
  for (int i = 0; i < count; ++i) {
    const Picture& one = pictures[static_cast<size_t>(i)];
    const Picture cell = enlarge(one.channels < channels ? to_rgb(one) : one, factor);
    paste(cell, sheet, options.gap + i % columns * step_x + (width * factor - cell.width) / 2,
          options.gap + i / columns * step_y + (height * factor - cell.height) / 2);
  }
  return sheet;
}

std::vector<Picture> make_sheets(const torch::Tensor& samples, const SheetOptions& options) {
  std::vector<Picture> sheets;
  for (const auto& frame : samples.dim() == 5 ? samples.unbind(2) : std::vector<torch::Tensor>{samples})
    sheets.push_back(make_sheet(to_pictures(frame), options));
  return sheets;
}

formats::PngText settings_text(std::string_view settings) {
  return {{"Software", std::string("Ditto ") + kVersion}, {"ditto", std::string(settings)}};
}

}  // namespace ditto::report
