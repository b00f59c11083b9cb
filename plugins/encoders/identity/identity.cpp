// Trains on the pictures themselves: "image" is "clean".
#include <ditto/encoder.h>
#include <ditto/error.h>

namespace {

class Identity final : public ditto::Encoder {
 public:
  using Options = ditto::NoOptions;

  Identity(const Options&, const Needs& needs) {
    if (const auto* image = ditto::find(needs.inputs, "image")) {
      image_ = *image;
      return;
    }
    std::string there;
    for (const auto& input : needs.inputs) there += (there.empty() ? "" : ", ") + input.name;
    throw ditto::Error(ditto::ErrorKind::config, "encoder \"identity\"",
                       "there is no \"image\" to be encoded, only: " + (there.empty() ? "nothing" : there),
                       "choose data with pictures, or another encoder");
  }

  ditto::TensorSpecs takes() const override { return {image_}; }
  ditto::TensorSpecs makes() const override {
    auto clean = image_;
    clean.name = "clean";
    return {clean};
  }
  ditto::Batch precompute(ditto::Batch batch, ditto::Context&) const override {
    batch["clean"] = batch.at("image");
    return batch;
  }

  bool decodes() const override { return true; }
  torch::Tensor decode(const torch::Tensor& clean, ditto::Context&) const override { return clean; }
  std::string fingerprint() const override { return "identity"; }

 private:
  ditto::TensorSpec image_;
};

}  // namespace

DITTO_PLUGIN(Encoder, Identity, "identity", "1.0.0", "Apache-2.0", "trains on the pictures themselves")
