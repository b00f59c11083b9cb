// A picture twice: as it is, and small, for models that learn to enlarge (J. Ho et al., 2021, "Cascaded diffusion
// models", arXiv:2106.15282). With `crop` a model learns on parts of large pictures, as Imagen's last does
// (arXiv:2205.11487): the small one is made of the part, so that both show the same place.
//
// Legend: B samples, C channels, H rows and W columns of a picture, h and w of the small one, P and Q of a part.
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/math/sizes.h>

#include <algorithm>
#include <cmath>

namespace {

using ditto::Batch;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using torch::Tensor;

constexpr const char *kImage = "image", *kClean = "clean", *kWhole = "clean_whole";

struct PyramidOptions {
  std::vector<int64_t> size{64, 64}, crop;
  std::string name = "low", filter = "bicubic";

  void read(ditto::OptionReader& option) {
    option("size", size, "rows and columns of the small picture");
    option("name", name, "of the small picture");
    option("filter", filter,
           "how pictures are made small: by cubic convolution as wide as a small pixel (PyTorch's and torchvision's "
           "antialiased bicubic), or as the mean of what a small pixel covers")
        .one_of({"bicubic", "area"});
    option("crop", crop,
           "rows and columns of the part of each picture that is learned from, anywhere in it, by the sample's id; "
           "empty: all of it");
    for (const auto& [key, sides] : {std::pair("size", &size), std::pair("crop", &crop)}) {
      const bool is_left_out = key == std::string("crop") && sides->empty();
      if (!is_left_out && (sides->size() != 2 || std::min(sides->front(), sides->back()) < 1 ||
                           std::max(sides->front(), sides->back()) > ditto::most::kSide))
        option.reject(key, "is " + ditto::to_text(ditto::OptionValue(*sides)) + ", and no rows and columns",
                      "write it as [64, 64]");
    }
    if (name.empty() || name == kClean || name == kWhole)
      option.reject("name", "= \"" + name + "\" is no name of its own", "choose another, as \"low\"");
  }
};

// Keys' cubic kernel with a = -0.5, as antialiasing filters have it.
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

// What a small pixel covers of the pixel [at, at + 1).
double covered(double from, double to, double at) { return std::max(0.0, std::min(to, at + 1) - std::max(from, at)); }

// [small, large]: a row holds the weights of a small pixel, whose sum is one. In double: no bit depends on a machine.
Tensor weights(int64_t large, int64_t small, bool is_cubic) {
  auto all = torch::zeros({small, large}, torch::kDouble);
  auto all_a = all.accessor<double, 2>();
  const double scale = static_cast<double>(large) / static_cast<double>(small);
  for (int64_t i = 0; i < small; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale, reach = is_cubic ? 2 * scale : scale / 2;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(std::floor(center - reach)));
    const auto last = std::min<int64_t>(large - 1, static_cast<int64_t>(std::ceil(center + reach)));
    double sum = 0;
    for (int64_t j = first; j <= last; ++j) {
      const auto at = static_cast<double>(j);
      all_a[i][j] = is_cubic ? cubic((at + 0.5 - center) / scale)
                             : covered(static_cast<double>(i) * scale, static_cast<double>(i + 1) * scale, at);
      sum += all_a[i][j];
    }
    for (int64_t j = first; j <= last; ++j) all_a[i][j] /= sum;
  }
  return all;
}

class Pyramid final : public ditto::Encoder {
 public:
  using Options = PyramidOptions;

  Pyramid(const Options& o, const Needs& needs) : options_(o), image_(given(needs.inputs)) {
    clean_ = small_ = image_;
    clean_.name = kClean;
    small_.name = o.name;
    if (!o.crop.empty()) std::copy(o.crop.begin(), o.crop.end(), clean_.shape.begin() + 1);
    std::copy(o.size.begin(), o.size.end(), small_.shape.begin() + 1);
    for (size_t dim = 1; dim < 3; ++dim) {
      if (image_.shape[dim] < 0) refuse("pictures come in several sizes", "give data.size, so that all have one");
      if (clean_.shape[dim] > image_.shape[dim])
        refuse("crop = " + text(o.crop) + " is a part of pictures of " + sides(image_),
               "choose a smaller one, or larger pictures (data.size)");
      if (small_.shape[dim] >= clean_.shape[dim])
        refuse("size = " + text(o.size) + " is not smaller than what it is made of, " + sides(clean_),
               "choose smaller sides");
    }
    for (const auto& input : needs.inputs)
      if (input.name == o.name)
        refuse("it calls the small picture \"" + o.name + "\", and that is there already", "choose another name");
    rows_ = weights(clean_.shape[1], o.size[0], o.filter == "bicubic");
    columns_ = weights(clean_.shape[2], o.size[1], o.filter == "bicubic");
  }

  TensorSpecs takes() const override { return {image_}; }
  TensorSpecs caches() const override {
    if (options_.crop.empty()) return makes();
    auto whole = image_;
    whole.name = kWhole;
    return {whole};
  }
  TensorSpecs makes() const override { return {clean_, small_}; }

  Batch precompute(Batch batch, ditto::Context& ctx) const override {
    const auto image_BCHW = batch.at(kImage);
    if (options_.crop.empty()) {
      batch[kClean] = image_BCHW;
      batch[options_.name] = made_small(image_BCHW, ctx);
    } else {
      batch[kWhole] = image_BCHW;
    }
    return batch;
  }

  Batch encode(Batch batch, ditto::Context& ctx) const override {
    if (options_.crop.empty()) return batch;
    const auto whole_BCHW = batch.at(kWhole);
    const auto u_B2 = ctx.random.uniform(ditto::Purpose::encoding, batch.ids, {2});
    const auto u = u_B2.accessor<double, 2>();
    const int64_t P = options_.crop[0], Q = options_.crop[1];
    ditto::Tensors parts;
    for (int64_t b = 0; b < whole_BCHW.size(0); ++b) {
      const auto at = [&](int64_t dim, int64_t whole, int64_t part) {
        return std::min(whole - part, static_cast<int64_t>(u[b][dim] * static_cast<double>(whole - part + 1)));
      };
      parts.push_back(whole_BCHW[b].narrow(1, at(0, image_.shape[1], P), P).narrow(2, at(1, image_.shape[2], Q), Q));
    }
    const auto clean_BCPQ =
        parts.empty() ? whole_BCHW.narrow(2, 0, P).narrow(3, 0, Q).contiguous() : torch::stack(parts);
    batch[kClean] = clean_BCPQ;
    batch[options_.name] = made_small(clean_BCPQ, ctx);
    return batch;
  }

  bool decodes() const override { return true; }
  Tensor decode(const Tensor& clean, ditto::Context&) const override { return clean; }
  std::string fingerprint() const override {
    return "pyramid 1, " + options_.name + " " + text(options_.size) + ", " + options_.filter + ", crop " +
           text(options_.crop);
  }

 private:
  static std::string text(const std::vector<int64_t>& list) { return ditto::to_text(ditto::OptionValue(list)); }
  static std::string sides(const TensorSpec& of) {
    return std::to_string(of.shape[1]) + " x " + std::to_string(of.shape[2]);
  }
  [[noreturn]] static void refuse(const std::string& found, const std::string& remedy) {
    throw ditto::Error(ditto::ErrorKind::config, "encoder \"pyramid\"", found, remedy);
  }
  static TensorSpec given(const TensorSpecs& inputs) {
    const auto* image = ditto::find(inputs, kImage);
    if (image && image->shape.size() == 3) return *image;
    refuse(image ? "\"image\" is " + ditto::to_text(*image) + ", and no picture"
                 : "there is no \"image\" to be made small",
           "choose data with pictures, or another encoder");
  }

  // Rows, then columns, as two linear maps: so that numbers are those of the run's kernels, on every device. In fp64
  // where the run is, whose data are in fp32 and what is kept of them in fp64: both give one picture.
  Tensor made_small(const Tensor& given_BCHW, ditto::Context& ctx) const {
    const auto x_BCHW = given_BCHW.to(ctx.compute == torch::kDouble ? torch::kDouble : torch::kFloat);
    const auto as_x = [&](const Tensor& weights) { return weights.to(x_BCHW.device(), x_BCHW.scalar_type()); };
    const auto x_BChW = ctx.ops.linear(x_BCHW.transpose(2, 3).contiguous(), as_x(rows_), {}).transpose(2, 3);
    return ctx.ops.linear(x_BChW.contiguous(), as_x(columns_), {});
  }

  const Options options_;
  const TensorSpec image_;
  TensorSpec clean_, small_;
  Tensor rows_, columns_;  // [h, H], [w, W] of what small pictures are made of
};

}  // namespace

DITTO_PLUGIN(Encoder, Pyramid, "pyramid", "1.0.0", "Apache-2.0",
             "pictures, or random parts of them, and beside each a small one, for models that enlarge")
