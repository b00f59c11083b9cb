#include "core/formats/picture/picture_resize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

// The same sums in wider words, where the processor has them; so many rows are brought to the target's width at a time.
#if defined(__x86_64__)
#define DITTO_WIDE __attribute__((target_clones("avx2", "default")))
#define DITTO_ROWS 2
#else
#define DITTO_WIDE
#define DITTO_ROWS 1
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

// Of each row a pixel is read and written as four numbers, of which those behind its own are the next one's: lines are
// that longer.
constexpr std::size_t kRows = DITTO_ROWS, kLanes = 4 * kRows, kBehind = kLanes - 1;
using Numbers = float __attribute__((vector_size(4 * kLanes)));

int rounded(float value) { return std::clamp(static_cast<int>(value + 0.5F), 0, 255); }

// `line` is room for a row, `numbers` for kLanes of each of its pixels.
DITTO_WIDE void make_rows(const std::array<const std::uint8_t*, kRows>& rows, std::size_t channels, const Taps& taps,
                          float* line, float* numbers, const std::array<float*, kRows>& to) {
  const auto begin = static_cast<std::size_t>(taps.first.front()),
             end = static_cast<std::size_t>(taps.first.back() + taps.most);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = begin * channels; i < end * channels + 3; ++i) line[i] = rows[row][i];
    for (std::size_t x = begin; x < end; ++x)
      std::memcpy(numbers + x * kLanes + 4 * row, line + x * channels, 4 * sizeof(float));
  }
  const float* weight = taps.weights.data();
  std::size_t at = 0;
  for (const int first : taps.first) {
    const float* from = numbers + static_cast<std::size_t>(first) * kLanes;
    Numbers sum{};
    for (int j = 0; j < taps.most; ++j, from += kLanes) {
      Numbers pixel;
      std::memcpy(&pixel, from, sizeof pixel);
      sum += *weight++ * pixel;
    }
    for (std::size_t row = 0; row < kRows; ++row)
      std::memcpy(to[row] + at, reinterpret_cast<const float*>(&sum) + 4 * row, 4 * sizeof(float));
    at += channels;
  }
  for (float* row : to)
    for (std::size_t i = 0; i < at; ++i) row[i] = static_cast<float>(rounded(row[i]));
}

// A target row, of rows of its width; `sums` is room for one.
DITTO_WIDE void add_rows(const std::vector<const float*>& rows, const float* weights, std::size_t length, float* sums,
                         std::uint8_t* to) {
  for (std::size_t i = 0; i < length; i += kLanes) {
    Numbers sum{};
    for (std::size_t j = 0; j < rows.size(); ++j) {
      Numbers row;
      std::memcpy(&row, rows[j] + i, sizeof row);
      sum += weights[j] * row;
    }
    std::memcpy(sums + i, &sum, sizeof sum);
  }
  for (std::size_t i = 0; i < length; ++i) to[i] = static_cast<std::uint8_t>(rounded(sums[i]));
}

// Target rows from above to below, each as soon as the stored rows that it needs are brought to its width: no picture
// lies between.
Picture resize(const Picture& in, Part height, Part width, Filter filter) {
  const Taps down(in.height, height, filter), across(in.width, width, filter);
  const auto channels = static_cast<std::size_t>(in.channels), stride = static_cast<std::size_t>(in.width) * channels;
  const auto length = static_cast<std::size_t>(width.count) * channels, most = static_cast<std::size_t>(down.most);
  const auto stored = static_cast<std::size_t>(in.height);
  Picture out{width.count, height.count, in.channels, {}};
  out.pixels.resize(length * static_cast<std::size_t>(height.count));
  std::vector<float> line(stride + kBehind), numbers(static_cast<std::size_t>(in.width) * kLanes),
      sums(length + kBehind);
  std::vector<std::uint8_t> last(stride + kBehind);  // row, with something behind it
  std::memcpy(last.data(), in.pixels.data() + (stored - 1) * stride, stride);
  const std::size_t held = most + kRows - 1;
  std::vector<std::vector<float>> rows(held, std::vector<float>(length + kBehind));  // stored row i at i % held
  std::vector<const float*> added(most);
  std::size_t made = 0;
  std::uint8_t* to = out.pixels.data();
  const float* weights = down.weights.data();
  for (const int above : down.first) {
    const auto first = static_cast<std::size_t>(above);
    for (made = std::max(made, first); made < first + most; made += kRows) {
      std::array<const std::uint8_t*, kRows> from;
      std::array<float*, kRows> into;
      for (std::size_t i = 0; i < kRows; ++i) {
        from[i] = made + i < stored - 1 ? in.pixels.data() + (made + i) * stride : last.data();
        into[i] = rows[(made + i) % held].data();
      }
      make_rows(from, channels, across, line.data(), numbers.data(), into);
    }
    for (std::size_t j = 0; j < most; ++j) added[j] = rows[(first + j) % held].data();
    add_rows(added, weights, length, sums.data(), to);
    weights += most;
    to += length;
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
  const std::uint8_t* from = line;
  for (; channels == 3 && from + 18 <= line + bytes; from += 18, to += 9) {
    std::uint8_t __attribute__((vector_size(16))) three;
    std::memcpy(&three, from, sizeof three);
    three = __builtin_shufflevector(three, three, 0, 1, 2, 6, 7, 8, 12, 13, 14, 15, 15, 15, 15, 15, 15, 15);
    std::memcpy(to, &three, sizeof three);  // what is beyond them is written over
  }
  for (; from < line + bytes; from += 2 * channels, to += channels)
    for (std::size_t c = 0; c < channels; ++c) to[c] = from[c];
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

Picture stretch(const Picture& picture, int height, int width) {
  if (picture.height == height && picture.width == width) return picture;
  return resize(picture, whole(height), whole(width), Filter::bicubic);
}

Picture pad(const Picture& picture, int height, int width) {
  constexpr std::uint8_t kWhite = 255;
  const double scale =
      std::min(static_cast<double>(height) / picture.height, static_cast<double>(width) / picture.width);
  const auto side = [&](int stored, int most) {
    return std::clamp(static_cast<int>(std::nearbyint(stored * scale)), 1, most);
  };
  const auto inner = stretch(picture, side(picture.height, height), side(picture.width, width));
  const auto channels = static_cast<std::size_t>(inner.channels), row = static_cast<std::size_t>(width) * channels,
             inner_row = static_cast<std::size_t>(inner.width) * channels;
  Picture out{width, height, inner.channels, {}};
  out.pixels.assign(row * static_cast<std::size_t>(height), kWhite);
  const auto left = static_cast<std::size_t>((width - inner.width) / 2) * channels;
  std::size_t to = static_cast<std::size_t>((height - inner.height) / 2) * row + left;
  for (std::size_t from = 0; from < inner.pixels.size(); from += inner_row, to += row)
    std::memcpy(out.pixels.data() + to, inner.pixels.data() + from, inner_row);
  return out;
}

}  // namespace ditto::formats
