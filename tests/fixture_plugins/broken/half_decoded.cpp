// An encoder whose pictures have another size than it says.
#include <ditto/ditto.h>

namespace {

struct HalfDecoded final : ditto::Encoder {
  using Options = ditto::NoOptions;
  HalfDecoded(const Options&, const Needs& needs) : image(*ditto::find(needs.inputs, "image")) {}
  ditto::TensorSpecs takes() const override { return {image}; }
  ditto::TensorSpecs makes() const override { return {{"clean", torch::kFloat, image.shape, image.range}}; }
  ditto::Batch precompute(ditto::Batch batch, ditto::Context&) const override {
    batch["clean"] = batch.at("image");
    return batch;
  }
  bool decodes() const override { return true; }
  torch::Tensor decode(const torch::Tensor& clean, ditto::Context&) const override { return clean; }
  std::vector<int64_t> decoded(const std::vector<int64_t>& clean) const override {
    return {clean[0], clean[1] / 2, clean[2] / 2};
  }
  std::string fingerprint() const override { return "half_decoded 1"; }

  ditto::TensorSpec image;
};

}  // namespace

DITTO_PLUGIN(Encoder, HalfDecoded, "half_decoded", "1.0.0", "Apache-2.0", "says another size than it decodes to")
