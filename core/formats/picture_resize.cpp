#include "core/formats/picture_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// The same sums in wider words, where the processor has them.
#if defined(__x86_64__)
#define DITTO_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define DITTO_WIDE
#endif

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

// Of a line of `whole` target pixels those that are wanted.
struct Part {
  int whole, first, count;
};
Part whole(int side) { return {side, 0, side}; }

// The stored pixels that each of them is made of: `most` from first[i] on, whose weights' sum is 1.
struct Taps {
  int most = 1;
  std::vector<int> first;
  std::vector<float> weights;  // count x most

  Taps(int from, Part to, Filter filter) : first(static_cast<std::size_t>(to.count)) {
    const double scale = static_cast<double>(from) / to.whole, widened = std::max(scale, 1.0);
    const double support = (filter == Filter::box ? 0.5 : 2.0) * widened;
    if (from != to.whole) most = std::min(from, static_cast<int>(std::ceil(2 * support)) + 1);
    std::vector<double> line(static_cast<std::size_t>(most));
    for (int i = 0; i < to.count; ++i) {
      const double centre = (to.first + i + 0.5) * scale;
      const int begin =
          from == to.whole ? to.first + i : std::clamp(static_cast<int>(centre - support + 0.5), 0, from - most);
      double sum = 0;
      for (int j = 0; j < most; ++j)
        sum += line[static_cast<std::size_t>(j)] = value_of(filter, (begin + j + 0.5 - centre) / widened);
      first[static_cast<std::size_t>(i)] = begin;
      for (const double weight : line) weights.push_back(static_cast<float>(weight / sum));
    }
  }
};

// A pixel is read and written as four numbers, of which those behind its own are the next one's: lines are that longer.
using Four = float __attribute__((vector_size(16)));
constexpr std::size_t kBehind = 3;

int rounded(float value) { return std::clamp(static_cast<int>(value + 0.5F), 0, 255); }

// A stored row's target pixels; `numbers` is room for the row.
DITTO_WIDE void make_row(const std::uint8_t* row, std::size_t channels, const Taps& taps, std::vector<float>& numbers,
                         std::vector<float>& to) {
  const auto begin = static_cast<std::size_t>(taps.first.front()) * channels;
  const auto end = static_cast<std::size_t>(taps.first.back() + taps.most) * channels;
  for (std::size_t i = begin; i < end; ++i) numbers[i] = row[i];
  const float* weight = taps.weights.data();
  float* pixel = to.data();
  for (const int first : taps.first) {
    const float* from = numbers.data() + static_cast<std::size_t>(first) * channels;
    Four sum{};
    for (int j = 0; j < taps.most; ++j, from += channels) {
      Four stored;
      std::memcpy(&stored, from, sizeof stored);
      sum += *weight++ * stored;
    }
    std::memcpy(pixel, &sum, sizeof sum);
    pixel += channels;
  }
  for (float& number : to) number = static_cast<float>(rounded(number));
}

DITTO_WIDE void add(float weight, const float* row, std::size_t length, float* sums) {
  for (std::size_t i = 0; i < length; ++i) sums[i] += weight * row[i];
}

// Target rows from above to below, each as soon as the stored rows that it needs are brought to its width: no picture
// lies between.
Picture resize(const Picture& in, Part height, Part width, Filter filter) {
  const Taps down(in.height, height, filter), across(in.width, width, filter);
  const auto channels = static_cast<std::size_t>(in.channels), stride = static_cast<std::size_t>(in.width) * channels;
  const auto length = static_cast<std::size_t>(width.count) * channels, most = static_cast<std::size_t>(down.most);
  Picture out{width.count, height.count, in.channels, {}};
  out.pixels.resize(length * static_cast<std::size_t>(height.count));
  std::vector<float> numbers(stride + kBehind), sums(length);
  std::vector<std::vector<float>> rows(most, std::vector<float>(length + kBehind));  // stored row i at i % most
  std::size_t made = 0;
  std::uint8_t* to = out.pixels.data();
  const float* weight = down.weights.data();
  for (const int above : down.first) {
    const auto first = static_cast<std::size_t>(above);
    for (made = std::max(made, first); made < first + most; ++made)
      make_row(in.pixels.data() + made * stride, channels, across, numbers, rows[made % most]);
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::size_t j = 0; j < most; ++j) add(*weight++, rows[(first + j) % most].data(), length, sums.data());
    for (std::size_t i = 0; i < length; ++i) *to++ = static_cast<std::uint8_t>(rounded(sums[i]));
  }
  return out;
}

std::uint8_t mean(std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a + b + 1) / 2); }

// What the box makes of even sides, first across and then down, a half rounded up each time; in its place.
void halve(Picture& picture) {
  const auto channels = static_cast<std::size_t>(picture.channels);
  const auto stride = static_cast<std::size_t>(picture.width) * channels;
  std::vector<std::uint8_t> line(stride);
  std::uint8_t* to = picture.pixels.data();
  picture.width /= 2;
  picture.height /= 2;
  for (int y = 0; y < picture.height; ++y, to += stride / 2) {
    const std::uint8_t* row = picture.pixels.data() + 2 * static_cast<std::size_t>(y) * stride;
    halve_rows(row, row + stride, stride, channels, line.data(), to);
  }
  picture.pixels.resize(static_cast<std::size_t>(to - picture.pixels.data()));
}

}  // namespace

// The mean of each pixel and the next one is made for all of them, many at a time, and of every other one kept.
DITTO_WIDE void halve_rows(const std::uint8_t* row, const std::uint8_t* below, std::size_t bytes, std::size_t channels,
                           std::uint8_t* line, std::uint8_t* to) {
  for (std::size_t i = 0; i + channels < bytes; ++i)
    line[i] = mean(mean(row[i], row[i + channels]), mean(below[i], below[i + channels]));
  for (const std::uint8_t* from = line; from < line + bytes; from += 2 * channels, to += channels)
    if (channels == 3)
      std::memcpy(to, from, 4);  // the fourth byte is written over
    else
      *to = *from;
}

Picture cover(Picture picture, int height, int width) {
  while (picture.height >= 2 * height && picture.width >= 2 * width)
    if (picture.height % 2 == 0 && picture.width % 2 == 0)
      halve(picture);
    else
      picture = resize(picture, whole(picture.height / 2), whole(picture.width / 2), Filter::box);
  if (picture.height == height && picture.width == width) return picture;
  const double scale =
      std::max(static_cast<double>(height) / picture.height, static_cast<double>(width) / picture.width);
  const auto middle = [&](int stored, int wanted) {
    const int side = std::max(wanted, static_cast<int>(std::nearbyint(stored * scale)));  // halves to even
    return Part{side, (side - wanted) / 2, wanted};
  };
  return resize(picture, middle(picture.height, height), middle(picture.width, width), Filter::bicubic);
}

}  // namespace ditto::formats
