// Nothing is wrong with it: a model that learns the weight of the encoder of its id, by the same name.
#include <ditto/ditto.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Stream;
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

struct Shifted final : ditto::Model {
  using Options = ShiftOptions;
  Shifted(const Options& o, const Needs& needs) : options(o), shape(needs.shape("x")) {
    by = add<Shift>(Unit::tokens, "by", shape);
  }
  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    return {.cond_BD = in.at("t").to(ctx.compute).unsqueeze(1), .text_BSE = {}, .text_mask_BS = {}};
  }
  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = {1, shape[1], shape[2]};
    s.x_BTD = (in.at("x").to(ctx.compute) + options.gain * by->shift(ctx)).flatten(2).transpose(1, 2);
    return s;
  }
  int64_t depth() const override { return 1; }
  Stream run_block(int64_t, Stream s, Context&) override { return s; }
  Tensor head(const Stream& s, Context&) override { return s.x_BTD.transpose(1, 2).unflatten(2, {shape[1], shape[2]}); }
  ditto::TensorSpecs takes() const override {
    return {{"x", torch::kFloat, shape, "noisy picture"}, {"t", torch::kFloat, {}, "its time"}};
  }

  Options options;
  std::vector<int64_t> shape;  // [C, H, W]
  std::shared_ptr<Shift> by;
};

}  // namespace

DITTO_MODEL_PLUGIN(Shifted, "shifted", "1.0.0", "Apache-2.0", "learns a shift of pictures")
