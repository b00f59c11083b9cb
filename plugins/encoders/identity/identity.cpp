// Trains on the pictures themselves: "image" is "clean".
#include <ditto/encoder.h>
#include <ditto/error.h>

namespace {

class Identity final : public ditto::Encoder {
 public:
  using Options = ditto::NoOptions;

  Identity(const Options&, const Needs& needs) {
    for (const auto& tensor : needs.data)
      if (tensor.name == "image") clean_ = tensor;
    if (clean_.name.empty())
      throw ditto::Error(ditto::ErrorKind::config, "encoder \"identity\"", "the data has no \"image\"",
                         "choose data with pictures, or another encoder");
    clean_.name = "clean";
  }

  ditto::Batch encode(ditto::Batch batch) const override {
    batch["clean"] = batch.at("image");
    batch.tensors.erase("image");
    return batch;
  }

  torch::Tensor decode(const torch::Tensor& clean) const override { return clean; }
  std::vector<ditto::TensorSpec> spec() const override { return {clean_}; }
  std::string fingerprint() const override { return "identity"; }

 private:
  ditto::TensorSpec clean_;
};

}  // namespace

DITTO_PLUGIN(Encoder, Identity, "identity", "1.0.0", "Apache-2.0", "trains on the pictures themselves")
