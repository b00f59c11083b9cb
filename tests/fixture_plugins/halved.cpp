// Nothing is wrong with it: an encoder of pictures that learns them as they are, and has a smaller one of each beside
// it.
#include <ditto/ditto.h>
#include <ditto/encoder.h>

namespace {

using ditto::Batch;

struct HalvedOptions {
  int64_t by = 2;
  std::string name = "low";
  void read(ditto::OptionReader& option) {
    option("by", by, "sides of the picture are divided by this").between(1, 64);
    option("name", name, "of the smaller picture");
  }
};

struct Halved final : ditto::Encoder {
  using Options = HalvedOptions;
  Halved(const Options& o, const Needs& needs) : options(o), image(*ditto::find(needs.inputs, "image")) {}
  ditto::TensorSpecs takes() const override { return {image}; }
  ditto::TensorSpecs makes() const override {
    auto clean = image, low = image;
    clean.name = "clean";
    low.name = options.name;
    for (size_t d = 1; d < low.shape.size(); ++d)
      if (low.shape[d] > 0) low.shape[d] /= options.by;
    return {clean, low};
  }
  Batch precompute(Batch batch, ditto::Context&) const override {
    const auto picture = batch.at("image");
    batch["clean"] = picture;
    batch[options.name] = torch::avg_pool2d(picture, options.by);
    return batch;
  }
  bool decodes() const override { return true; }
  torch::Tensor decode(const torch::Tensor& clean, ditto::Context&) const override { return clean; }
  std::string fingerprint() const override { return "halved 1, by " + std::to_string(options.by); }

  Options options;
  ditto::TensorSpec image;
};

}  // namespace

DITTO_PLUGIN(Encoder, Halved, "halved", "1.0.0", "Apache-2.0", "pictures, and a smaller one of each")
