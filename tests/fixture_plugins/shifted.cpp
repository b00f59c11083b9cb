// Nothing is wrong with it: an encoder of pictures with a weight, which it needs in both directions.
#include <ditto/ditto.h>
#include <ditto/encoder.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Unit;
using torch::Tensor;

struct ShiftOptions {
  double gain = 1;
  void read(ditto::OptionReader& option) { option("gain", gain, "what the shift is multiplied by"); }
};

struct Shift : ditto::Layer {
  explicit Shift(const std::vector<int64_t>& shape) : shift(parameter("shift", shape, ditto::Init::normal(1))) {}
  ditto::Parameter shift;
};

struct Shifted final : ditto::Encoder {
  using Options = ShiftOptions;
  Shifted(const Options& o, const Needs& needs) : options(o), image(*ditto::find(needs.inputs, "image")) {
    by = add<Shift>(Unit::tokens, "by", image.shape);
  }
  ditto::TensorSpecs takes() const override { return {image}; }
  ditto::TensorSpecs makes() const override { return {{"clean", torch::kFloat, image.shape, "any"}}; }
  Batch precompute(Batch batch, Context& ctx) const override {
    const auto picture = batch.at("image");
    batch["clean"] =
        ctx.in_unit({Unit::tokens}, [&] { return picture.to(ctx.compute) + options.gain * by->shift(ctx); });
    return batch;
  }
  bool decodes() const override { return true; }
  Tensor decode(const Tensor& clean, Context& ctx) const override {
    return ctx.in_unit({Unit::tokens}, [&] { return clean.to(ctx.compute) - options.gain * by->shift(ctx); });
  }
  std::string fingerprint() const override { return "shifted 1"; }

  Options options;
  ditto::TensorSpec image;
  std::shared_ptr<Shift> by;
};

}  // namespace

DITTO_PLUGIN(Encoder, Shifted, "shifted", "1.0.0", "Apache-2.0", "pictures and a shift that is a weight")
