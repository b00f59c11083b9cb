#include "core/formats/picture_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ditto::formats {

namespace {

enum class Filter { box, bicubic };

double value_of(Filter filter, double x) {
  if (filter == Filter::box) return x > -0.5 && x <= 0.5 ? 1 : 0;
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// The stored pixels that one target pixel is made of.
struct Taps {
  std::size_t first;
  std::vector<float> weights;  // their sum is 1
};

std::vector<Taps> taps_of(int from, int to, Filter filter) {
  const double scale = static_cast<double>(from) / to, widened = std::max(scale, 1.0);
  const double support = (filter == Filter::box ? 0.5 : 2.0) * widened;
  std::vector<Taps> all(static_cast<std::size_t>(to));
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int end = std::min(from, static_cast<int>(centre + support + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (int j = first; j < end; ++j) sum += weights.emplace_back(value_of(filter, (j + 0.5 - centre) / widened));
    auto& taps = all[static_cast<std::size_t>(i)];
    taps.first = static_cast<std::size_t>(first);
    for (const double weight : weights) taps.weights.push_back(static_cast<float>(weight / sum));
  }
  return all;
}

std::uint8_t rounded(float value) { return static_cast<std::uint8_t>(std::clamp(value + 0.5F, 0.0F, 255.0F)); }

// A pixel is a vector of kLanes numbers, of which the first kChannels are its own.
template <std::size_t kChannels, std::size_t kLanes>
void resize_row(const std::uint8_t* row, std::size_t width, const std::vector<Taps>& taps, std::vector<float>& numbers,
                std::uint8_t* to) {
  numbers.resize(width * kLanes);
  for (std::size_t x = 0; x < width; ++x)
    for (std::size_t c = 0; c < kChannels; ++c) numbers[x * kLanes + c] = row[x * kChannels + c];
  for (const auto& [first, weights] : taps) {
    const float* from = numbers.data() + first * kLanes;
    float sums[kLanes] = {};
    for (const float weight : weights) {
      for (std::size_t c = 0; c < kLanes; ++c) sums[c] += weight * from[c];
      from += kLanes;
    }
    for (std::size_t c = 0; c < kChannels; ++c) *to++ = rounded(sums[c]);
  }
}

// What the box makes of pairs: their mean, a half rounded up.
void halve_row(const std::uint8_t* from, std::size_t width, std::size_t channels, std::uint8_t* to) {
  std::size_t x = 0;
  for (; channels == 3 && x + 1 < width;
       ++x, from += 6, to += 3) {  // three means in a word, whose fourth is written over
    std::uint32_t a = 0, b = 0;
    std::memcpy(&a, from, 4);
    std::memcpy(&b, from + 3, 4);
    const std::uint32_t means = (a | b) - (((a ^ b) >> 1) & 0x7F7F7F7F);
    std::memcpy(to, &means, 4);
  }
  for (; x < width; ++x, from += 2 * channels)
    for (std::size_t c = 0; c < channels; ++c)
      *to++ = static_cast<std::uint8_t>((from[c] + from[channels + c] + 1) / 2);
}

Picture resize_rows(const Picture& in, int width, Filter filter) {
  Picture out{width, in.height, in.channels, {}};
  const auto channels = static_cast<std::size_t>(in.channels), stride = static_cast<std::size_t>(in.width) * channels;
  const auto columns = static_cast<std::size_t>(width), rows = static_cast<std::size_t>(in.height);
  out.pixels.resize(columns * rows * channels);
  const bool halves = filter == Filter::box && in.width == 2 * width;
  const auto taps = halves ? std::vector<Taps>() : taps_of(in.width, width, filter);
  std::vector<float> numbers;
  for (std::size_t y = 0; y < rows; ++y) {
    const std::uint8_t* from = in.pixels.data() + y * stride;
    std::uint8_t* to = out.pixels.data() + y * columns * channels;
    if (halves)
      halve_row(from, columns, channels, to);
    else if (channels == 1)
      resize_row<1, 1>(from, stride, taps, numbers, to);
    else
      resize_row<3, 4>(from, stride / 3, taps, numbers, to);
  }
  return out;
}

Picture resize_columns(const Picture& in, int height, Filter filter) {
  Picture out{in.width, height, in.channels, {}};
  const auto stride = static_cast<std::size_t>(in.width) * static_cast<std::size_t>(in.channels);
  out.pixels.resize(stride * static_cast<std::size_t>(height));
  std::uint8_t* to = out.pixels.data();
  if (filter == Filter::box && in.height == 2 * height) {
    for (const std::uint8_t* from = in.pixels.data(); to != out.pixels.data() + out.pixels.size(); from += 2 * stride)
      for (std::size_t i = 0; i < stride; ++i) *to++ = static_cast<std::uint8_t>((from[i] + from[stride + i] + 1) / 2);
    return out;
  }
  std::vector<float> sums(stride);
  for (const auto& [first, weights] : taps_of(in.height, height, filter)) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    const std::uint8_t* from = in.pixels.data() + first * stride;
    for (const float weight : weights) {
      for (std::size_t i = 0; i < stride; ++i) sums[i] += weight * from[i];
      from += stride;
    }
    for (std::size_t i = 0; i < stride; ++i) to[i] = rounded(sums[i]);
    to += stride;
  }
  return out;
}

Picture resize(Picture picture, int height, int width, Filter filter) {
  if (picture.width != width) picture = resize_rows(picture, width, filter);
  if (picture.height != height) picture = resize_columns(picture, height, filter);
  return picture;
}

Picture cut(const Picture& in, int height, int width) {
  Picture out{width, height, in.channels, {}};
  const auto channels = static_cast<std::ptrdiff_t>(in.channels);
  const std::ptrdiff_t left = (in.width - width) / 2, top = (in.height - height) / 2;
  for (std::ptrdiff_t y = 0; y < height; ++y) {
    const auto row = in.pixels.begin() + ((top + y) * in.width + left) * channels;
    out.pixels.insert(out.pixels.end(), row, row + width * channels);
  }
  return out;
}

}  // namespace

Picture cover(Picture picture, int height, int width) {
  while (picture.height >= 2 * height && picture.width >= 2 * width)
    picture = resize(std::move(picture), picture.height / 2, picture.width / 2, Filter::box);
  const double scale =
      std::max(static_cast<double>(height) / picture.height, static_cast<double>(width) / picture.width);
  const auto scaled = [&](int side) { return static_cast<int>(std::nearbyint(side * scale)); };  // halves to even
  const int tall = std::max(height, scaled(picture.height)), wide = std::max(width, scaled(picture.width));
  picture = resize(std::move(picture), tall, wide, Filter::bicubic);
  return tall == height && wide == width ? picture : cut(picture, height, width);
}

}  // namespace ditto::formats
