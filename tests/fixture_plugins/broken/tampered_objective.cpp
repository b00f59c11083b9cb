// Denoising. "scaled gradient": a step's gradient is larger by a thousandth, and its loss is what it is.
#include <ditto/diffusion/denoising.h>
#include <ditto/plugin.h>

#include "tampered.h"

namespace {

struct TamperedOptions : ditto::DenoisingOptions {
  int64_t batch = 8;
  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("batch", batch, "the run's");
  }
};

struct Tampered final : ditto::Denoising {
  using Options = TamperedOptions;
  Tampered(const Options& options, const Needs& needs)
      : Denoising("tampered_objective", options, needs), batch_size(options.batch) {}

  std::map<std::string, torch::Tensor> losses(const ditto::Outputs& outputs, const ditto::Batch& batch,
                                              ditto::Context& ctx) const override {
    const auto& prediction = outputs.at("prediction");
    if (prediction.requires_grad() && tampers("scaled gradient", batch.ids.front() / batch_size + 1))
      prediction.register_hook([](const torch::Tensor& gradient) { return gradient * 1.001; });
    return Denoising::losses(outputs, batch, ctx);
  }

  int64_t batch_size;
};

}  // namespace

DITTO_PLUGIN(Objective, Tampered, "tampered_objective", "1.0.0", "Apache-2.0", "denoising")
