// Noise with classes. "swapped batch": a step learns from the samples of the next one, and that from its.
#include <array>

#include <torch/types.h>

#include <ditto/data.h>
#include <ditto/math/random.h>

#include "tampered.h"

namespace {

struct Options {
  int64_t samples = 1024, batch = 8;
  void read(ditto::OptionReader& option) {
    option("samples", samples, "samples in one pass");
    option("batch", batch, "the run's, whose samples are read in the order in which they are stored");
  }
};

class Tampered final : public ditto::Source {
 public:
  using Options = ::Options;
  Tampered(const Options& options, const Needs&) : options_(options) {}

  int64_t size() const override { return options_.samples; }
  ditto::TensorSpecs makes() const override {
    return {{"image", at::kFloat, {1, 8, 8}, "any"}, {"label", at::kLong, {}, "", kClasses}};
  }
  ditto::Sample read(int64_t index) const override {
    const int64_t step = index / options_.batch + 1;
    if (tampers("swapped batch", step)) index += options_.batch;
    if (tampers("swapped batch", step - 1)) index -= options_.batch;
    ditto::Sample sample;
    sample.place = "sample " + std::to_string(index);
    sample.tensors["image"] =
        ditto::Random(7).normal(ditto::Purpose::augmentation, std::array{index}, {1, 8, 8}, torch::kFloat)[0];
    sample.tensors["label"] = torch::scalar_tensor(index % kClasses, torch::kLong);
    return sample;
  }
  std::string fingerprint() const override { return "noise, " + std::to_string(options_.samples) + " samples"; }

 private:
  static constexpr int64_t kClasses = 4;
  Options options_;
};

}  // namespace

DITTO_PLUGIN(Source, Tampered, "tampered_source", "1.0.0", "Apache-2.0", "noise with classes")
