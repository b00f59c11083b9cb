// Denoising: a schedule corrupts the samples, the model predicts the schedule's target.
#include <ditto/diffusion/denoising.h>
#include <ditto/plugin.h>

namespace {

struct DiffusionOptions : ditto::DenoisingOptions {
  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("time_per", time_per,
           "what has a time of its own: a \"sample\", or each \"frame\" of a video (diffusion forcing, "
           "arXiv:2407.01392), of models that take it (st_dit)")
        .one_of({"sample", "frame"});
  }
};

struct Diffusion final : ditto::Denoising {
  using Options = DiffusionOptions;
  Diffusion(const Options& options, const Needs& needs) : Denoising("diffusion", options, needs) {}
};

}  // namespace

DITTO_PLUGIN(Objective, Diffusion, "diffusion", "1.1.0", "Apache-2.0",
             "denoising with any scheduler, and dropout of the condition")
