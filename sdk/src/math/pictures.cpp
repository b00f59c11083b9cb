#include <ditto/math/pictures.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace ditto {

namespace {

// The stored lines that a target line is made of: `most` from first[i] on, weighed by a triangle; the sum is 1.
struct Taps {
  int64_t most;
  std::vector<int64_t> first;
  std::vector<float> weights;  // target lines x most

  Taps(int64_t from, int64_t to) : first(static_cast<size_t>(to)) {
    const double scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(scale, 1.0);
    most = std::min(from, static_cast<int64_t>(std::ceil(2 * reach)) + 1);
    weights.resize(static_cast<size_t>(to * most));
    std::vector<double> line(static_cast<size_t>(most));
    for (int64_t i = 0; i < to; ++i) {
      const double centre = (static_cast<double>(i) + 0.5) * scale;
      const auto begin = std::clamp<int64_t>(static_cast<int64_t>(centre - reach + 0.5), 0, from - most);
      double sum = 0;
      for (int64_t j = 0; j < most; ++j) {
        const double x = std::abs(static_cast<double>(begin + j) + 0.5 - centre) / reach;
        sum += line[static_cast<size_t>(j)] = std::max(0.0, 1 - x);
      }
      first[static_cast<size_t>(i)] = begin;
      for (int64_t j = 0; j < most; ++j)
        weights[static_cast<size_t>(i * most + j)] = static_cast<float>(line[static_cast<size_t>(j)] / sum);
    }
  }
};

// Every picture goes through these loops: in vectors, and with one rounding an operation on any processor.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off")
#endif

// One target line: `rows` are those of the picture from its first on, `line` holds their weighed sum.
void make_row(const float* rows, int64_t stride, const float* weights, int64_t most, int64_t width, float* line) {
  for (int64_t x = 0; x < width; ++x) line[x] = weights[0] * rows[x];
  for (int64_t j = 1; j < most; ++j) {
    const float weight = weights[j];
    const float* row = rows + j * stride;
    for (int64_t x = 0; x < width; ++x) line[x] += weight * row[x];
  }
}

void make_numbers(const float* line, const int64_t* first, const float* weights, int64_t most, int64_t width,
                  float* to) {
  for (int64_t x = 0; x < width; ++x, weights += most) {
    const float* from = line + first[x];
    float sum = weights[0] * from[0];
    for (int64_t j = 1; j < most; ++j) sum += weights[j] * from[j];
    to[x] = sum;
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

}  // namespace

torch::Tensor image_of_pixels(std::span<const std::uint8_t> pixels, int64_t height, int64_t width, int64_t channels) {
  static const auto values = [] {
    std::array<float, 256> all{};
    for (size_t v = 0; v < all.size(); ++v) all[v] = static_cast<float>(v) / 127.5f - 1.0f;
    return all;
  }();
  auto out = torch::empty({channels, height, width});
  auto* to = out.data_ptr<float>();
  const auto area = static_cast<size_t>(height * width), count = static_cast<size_t>(channels);
  for (size_t c = 0; c < count; ++c) {
    const std::uint8_t* from = pixels.data() + c;
    for (size_t i = 0; i < area; ++i, from += count) *to++ = values[*from];
  }
  return out;
}

torch::Tensor crop_and_resize(const torch::Tensor& image_CHW, int64_t height, int64_t width) {
  const int64_t channels = image_CHW.size(0), h = image_CHW.size(1), w = image_CHW.size(2);
  if (h == height && w == width) return image_CHW;
  const int64_t part_h = std::clamp<int64_t>((w * height + width / 2) / width, 1, h);
  const int64_t part_w = std::clamp<int64_t>((h * width + height / 2) / height, 1, w);
  const auto image = image_CHW.to(torch::kFloat).contiguous();
  auto out = torch::empty({channels, height, width});
  const Taps rows(part_h, height), columns(part_w, width);
  std::vector<float> line(static_cast<size_t>(part_w));
  float* to = out.data_ptr<float>();
  for (int64_t c = 0; c < channels; ++c) {
    const float* from = image.const_data_ptr<float>() + (c * h + (h - part_h) / 2) * w + (w - part_w) / 2;
    for (int64_t y = 0; y < height; ++y, to += width) {
      make_row(from + rows.first[static_cast<size_t>(y)] * w, w, rows.weights.data() + y * rows.most, rows.most, part_w,
               line.data());
      make_numbers(line.data(), columns.first.data(), columns.weights.data(), columns.most, width, to);
    }
  }
  return out;
}

}  // namespace ditto
