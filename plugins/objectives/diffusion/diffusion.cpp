// Denoising: a schedule corrupts the samples, the model predicts the schedule's target.
#include <ditto/denoising.h>
#include <ditto/plugin.h>

namespace {

struct Diffusion final : ditto::Denoising {
  using Options = ditto::DenoisingOptions;
  Diffusion(const Options& options, const Needs& needs) : Denoising("diffusion", options, needs) {}
};

}  // namespace

DITTO_PLUGIN(Objective, Diffusion, "diffusion", "1.0.0", "Apache-2.0",
             "denoising with any scheduler, and dropout of the condition")
