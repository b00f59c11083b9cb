// Samples made from their number: for tests, benchmarks, and as the shortest example of a source.
#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/error.h>
#include <ditto/math/elementary.h>
#include <ditto/math/random.h>
#include <ditto/math/sizes.h>
#include <ditto/text.h>

namespace {

using ditto::Purpose;
using ditto::Sample;

struct Size {
  int64_t frames, height, width;  // no frames: a picture
};

struct Options {
  std::string content = "shapes";
  int64_t samples = 1024, validation_samples = 128;
  int64_t classes = 10;
  int64_t channels = 3, frames = 0, height = 32, width = 32;
  std::vector<std::string> sizes;
  bool captions = false;
  int64_t text_tokens = 0, text_width = 16, text_pooled = 0;
  double mean = 0.5, spread = 0.1;
  int64_t seed = 0;

  void read(ditto::OptionReader& option) {
    option("content", content,
           "\"shapes\": one coloured shape a picture or video; \"clusters\": a Gaussian around its class's own mean "
           "picture; "
           "\"noise\": standard normal numbers, as latents have")
        .one_of({"shapes", "clusters", "noise"});
    option("samples", samples, "samples in one pass of the training part").at_least(1);
    option("validation_samples", validation_samples, "samples of the held-out part").at_least(1);
    option("classes", classes, "number of classes; sample i has class i modulo this; 0: no labels")
        .between(0, ditto::most::kClasses);
    option("channels", channels, "channels of a picture").between(1, ditto::most::kSide);
    option("frames", frames, "frames of a video, in which a shape moves along a line; 0: pictures")
        .between(0, ditto::most::kSide);
    option("height", height, "rows of a picture").between(1, ditto::most::kSide);
    option("width", width, "columns of a picture").between(1, ditto::most::kSide);
    option("sizes", sizes,
           "instead of frames, height and width: sizes of which each sample has one, as [\"32x48\", \"4x32x32\"] of "
           "pictures and videos; beside videos a picture is a video of one frame");
    if (content == "clusters" && !sizes.empty())
      option.reject("sizes", "goes with content = \"shapes\" or \"noise\"", "clusters are around pictures of one size");
    option("mean", mean, "clusters: standard deviation of the classes' means, for each number").at_least(0.0);
    option("spread", spread, "clusters: standard deviation within a class").at_least(0.0);
    option("captions", captions, "each sample has a caption, \"a sample of class 3\", for an encoder of texts")
        .noted_if_given();
    option("text_tokens", text_tokens,
           "longest text; class i has a text of its own, of 1 + i modulo this embedded tokens; 0: no texts")
        .between(0, ditto::most::kSide);
    option("text_width", text_width, "numbers of a text's embedded token").between(1, ditto::most::kWidth);
    option("text_pooled", text_pooled, "numbers of a whole text's embedding; 0: there is none")
        .between(0, ditto::most::kWidth);
    option.only_if(content == "clusters", {"mean", "spread"}, "is of content = \"clusters\"");
    option.only_if(sizes.empty(), {"frames", "height", "width"}, "stands beside data.sizes, which say it");
    option.only_if(text_tokens > 0, {"text_width"}, "is of texts, and data.text_tokens = 0");
    if (text_pooled > 0 && text_tokens == 0)
      option.reject("text_pooled", "goes with texts, and data.text_tokens = 0", "set text_tokens");
    option("seed", seed, "names the data; it is not the run's seed").at_least(0);
    for (const auto& text : sizes) check_size(option, text);
    int64_t largest = 0;
    for (const auto& one : all_sizes())
      largest = std::max(largest, channels * std::max<int64_t>(one.frames, 1) * one.height * one.width);
    for (const auto& [name, numbers] :
         {std::pair("height", largest), std::pair("text_tokens", text_tokens * text_width)})
      if (numbers > ditto::most::kNumbers)
        option.reject(name, "and the sizes beside it make samples of " + std::to_string(numbers) + " numbers",
                      "at most " + std::to_string(ditto::most::kNumbers) + " are made");
  }

  static void check_size(const ditto::OptionReader& option, const std::string& text) {
    const auto sides = ditto::sides_of(text);
    const bool fits = std::all_of(sides.begin(), sides.end(), [](int64_t n) { return n <= ditto::most::kSide; });
    if (!fits || (sides.size() != 2 && sides.size() != 3))
      option.reject("sizes", "has \"" + text + "\", which is no size",
                    "write rows x columns or frames x rows x columns, each at most " +
                        std::to_string(ditto::most::kSide) + ": \"32x48\", \"4x32x32\"");
  }
  // Of the samples: one, or those of `sizes`.
  std::vector<Size> all_sizes() const {
    if (sizes.empty()) return {{frames, height, width}};
    std::vector<Size> all;
    for (const auto& text : sizes) {
      auto sides = ditto::sides_of(text);
      if (sides.size() == 2) sides.insert(sides.begin(), has_videos() ? 1 : 0);
      all.push_back({sides[0], sides[1], sides[2]});
    }
    return all;
  }
  bool has_videos() const {
    return std::any_of(sizes.begin(), sizes.end(), [](const auto& text) { return ditto::sides_of(text).size() == 3; });
  }
};

constexpr std::uint32_t kMeans = 1, kHeldOut = 2, kTexts = 3,
                        kPooled = 4;  // series: numbers that must not be a sample's

// The data's own seeds lie apart from those of runs, so that no sample repeats a run's noise.
std::uint64_t apart(int64_t seed) { return static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15ull + 0x5D1770DA7Aull; }

// How far inside the unit shape a point is: positive inside. 0 disk, 1 square, 2 diamond, 3 ring.
double inside(int64_t shape, double x, double y) {
  const double radius = std::sqrt(x * x + y * y);
  switch (shape % 4) {
    case 0: return 1 - radius;
    case 1: return 1 - std::max(std::abs(x), std::abs(y)) / 0.85;
    case 2: return 1 - (std::abs(x) + std::abs(y)) / 1.2;
    default: return 0.3 - std::abs(radius - 0.75);
  }
}

class Synthetic final : public ditto::Source {
 public:
  using Options = ::Options;

  Synthetic(const Options& options, const Needs& needs)
      : options_(options),
        sizes_(options.all_sizes()),
        held_out_(needs.split == ditto::SplitOf::validation),
        random_(apart(options.seed)) {}

  int64_t size() const override { return held_out_ ? options_.validation_samples : options_.samples; }

  ditto::TensorSpecs makes() const override {
    const char* range = options_.content == "shapes" ? "-1 … 1" : "any";
    auto shape = shape_of(sizes_.front());
    if (!options_.sizes.empty()) std::fill(shape.begin() + 1, shape.end(), ditto::kOwnSide);
    ditto::TensorSpecs out{{"image", at::kFloat, shape, range}};
    if (options_.classes > 0)
      out.push_back({"label", at::kLong, {}, "0 … " + std::to_string(options_.classes - 1), options_.classes});
    if (options_.captions) out.push_back({"caption", at::kByte, {-1}, "UTF-8"});
    if (options_.text_tokens > 0) {
      out.push_back({"text", at::kFloat, {-1, options_.text_width}, "any"});
      out.push_back({"text_mask", at::kBool, {-1}, "true; false where a batch is padded"});
    }
    if (options_.text_pooled > 0) out.push_back({"text_pooled", at::kFloat, {options_.text_pooled}, "any"});
    return out;
  }

  ditto::SampleInfo info(int64_t index) const override {
    ditto::SampleInfo shapes{{"image", shape_of(size_of(index))}};
    if (options_.classes > 0) shapes["label"] = {};
    if (options_.captions) shapes["caption"] = {static_cast<int64_t>(caption(index).size())};
    if (options_.text_tokens > 0) {
      const int64_t label = options_.classes > 0 ? index % options_.classes : 0;
      const int64_t tokens = 1 + label % options_.text_tokens;
      shapes["text"] = {tokens, options_.text_width};
      shapes["text_mask"] = {tokens};
      if (options_.text_pooled > 0) shapes["text_pooled"] = {options_.text_pooled};
    }
    return shapes;
  }

  Sample read(int64_t index) const override {
    const int64_t label = options_.classes > 0 ? index % options_.classes : 0;
    Sample sample;
    sample.place = (held_out_ ? "synthetic validation sample " : "synthetic sample ") + std::to_string(index);
    sample.tensors["image"] = options_.content == "noise"      ? normal(index, series(), shape_of(size_of(index)))
                              : options_.content == "clusters" ? cluster(index, label)
                                                               : shape(index, label);
    if (options_.classes > 0) sample.tensors["label"] = torch::scalar_tensor(label, torch::kLong);
    if (options_.captions) {
      const auto text = caption(index);
      auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
      std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
      sample.tensors["caption"] = bytes;
    }
    if (options_.text_tokens > 0) {
      const auto text = random_.normal(Purpose::noise, std::array{label}, {options_.text_tokens, options_.text_width},
                                       at::kFloat, kTexts)[0];
      sample.tensors["text"] = text.slice(0, 0, 1 + label % options_.text_tokens).clone();
      sample.tensors["text_mask"] = torch::ones({sample.tensors["text"].size(0)}, at::kBool);
      if (options_.text_pooled > 0)
        sample.tensors["text_pooled"] =
            random_.normal(Purpose::noise, std::array{label}, {options_.text_pooled}, at::kFloat, kPooled)[0];
    }
    return sample;
  }

  std::string fingerprint() const override {
    ditto::OptionReader reader({});
    Options(options_).read(reader);
    std::string text = "synthetic 1";
    for (const auto& option : reader.declared())
      // What came later is named where it is used.
      if ((option.name != "text_pooled" || options_.text_pooled > 0) &&
          (option.name != "captions" || options_.captions))
        text += ", " + option.name + " = " + ditto::to_text(option.value);
    return text;
  }

 private:
  std::uint32_t series() const { return held_out_ ? kHeldOut : 0; }

  std::string caption(int64_t index) const {
    return options_.classes > 0 ? "a sample of class " + std::to_string(index % options_.classes) : "a sample";
  }

  // In no order that classes have.
  const Size& size_of(int64_t index) const {
    const auto mixed = (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15ull >> 32;
    return sizes_[mixed % sizes_.size()];
  }

  std::vector<int64_t> shape_of(const Size& size) const {
    std::vector<int64_t> shape{options_.channels, size.height, size.width};
    if (size.frames > 0) shape.insert(shape.begin() + 1, size.frames);
    return shape;
  }

  torch::Tensor normal(int64_t id, std::uint32_t series, const std::vector<int64_t>& shape) const {
    return random_.normal(Purpose::noise, std::array{id}, shape, at::kFloat, series)[0];
  }

  torch::Tensor cluster(int64_t index, int64_t label) const {
    const auto shape = shape_of(sizes_.front());
    return normal(label, kMeans, shape) * options_.mean + normal(index, series(), shape) * options_.spread;
  }

  // A shape and a colour of its class's own, anywhere in the picture, on black (-1), with soft edges one pixel wide. In
  // a video it moves from one place to another.
  torch::Tensor shape(int64_t index, int64_t label) const {
    const Size& size = size_of(index);
    const int64_t places = size.frames > 0 ? 2 : 1;
    const auto drawn = random_.uniform(Purpose::noise, std::array{index}, {1 + 2 * places}, at::kDouble, series());
    const double* u = drawn.const_data_ptr<double>();
    const double least = static_cast<double>(std::min(size.height, size.width));
    const double radius = least * (0.2 + 0.15 * u[0]);
    const auto place = [&](int64_t draw, int64_t side) {
      return radius + u[draw] * (static_cast<double>(side) - 2 * radius);
    };
    auto out = torch::empty(shape_of(size));
    auto* to = out.data_ptr<float>();
    for (int64_t c = 0; c < options_.channels; ++c)
      for (int64_t f = 0; f < std::max<int64_t>(size.frames, 1); ++f) {
        const double way = size.frames > 1 ? static_cast<double>(f) / static_cast<double>(size.frames - 1) : 0;
        const auto at = [&](int64_t draw, int64_t side) {
          const double start = place(draw, side);
          return way == 0 ? start : start + way * (place(draw + 2, side) - start);
        };
        to = draw(to, size, label, colour_of(label, c), radius, at(1, size.height), at(2, size.width));
      }
    return out;
  }

  // One channel of one frame; returns the place after it.
  float* draw(float* to, const Size& size, int64_t label, double colour, double radius, double y0, double x0) const {
    for (int64_t y = 0; y < size.height; ++y)
      for (int64_t x = 0; x < size.width; ++x) {
        const double depth =
            inside(label, (static_cast<double>(x) + 0.5 - x0) / radius, (static_cast<double>(y) + 0.5 - y0) / radius);
        *to++ = static_cast<float>(2 * colour * std::clamp(depth * radius + 0.5, 0.0, 1.0) - 1);
      }
    return to;
  }

  // 0 … 1; hues around the colour circle, one a class. A grey picture has one level a class.
  double colour_of(int64_t label, int64_t channel) const {
    const double hue = static_cast<double>(label) / static_cast<double>(std::max<int64_t>(options_.classes, 1));
    if (options_.channels == 1) return 1 - 0.6 * hue;
    const double turns = 1 + hue - static_cast<double>(channel) / static_cast<double>(options_.channels);
    return 0.6 + 0.4 * ditto::elementary::cos_sin_of_turn(turns).cos;
  }

  Options options_;
  std::vector<Size> sizes_;
  bool held_out_;
  ditto::Random random_;
};

}  // namespace

DITTO_PLUGIN(Source, Synthetic, "synthetic", "1.0.0", "Apache-2.0", "pictures, videos and texts made from a number")
