// Ancestral sampling (Ho et al., arXiv:2006.11239, alg. 2): one draw from the schedule's own Gaussian a step, and no
// noise in the last. The variance is the schedule's to give, learned or fixed.
#include <iterator>

#include <ditto/math/elementary.h>
#include <ditto/sampler.h>

namespace {

constexpr const char* kReason = "ancestral sampling needs a schedule that is a chain of Gaussian steps, such as iddpm";

class Ancestral : public ditto::Sampler {
 public:
  using Options = ditto::NoOptions;
  Ancestral(const Options&, const Needs&) {}

  std::string refuses(const ditto::Scheduler& scheduler) const override {
    return scheduler.has_posterior() ? "" : kReason;
  }

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    if (!refuses(request.scheduler).empty())
      throw ditto::Error(ditto::ErrorKind::config, "sampler 'ancestral'", kReason,
                         "use ddim with eta = 1, euler or heun");
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const auto prediction = predict(request, x, step.t);
      const auto [mean, log_variance] = request.scheduler.step_back(prediction, x, step.grid, step.index);
      if (step.index + 2 == std::ssize(step.grid)) return mean;
      return mean +
             ditto::elementary::map(0.5 * log_variance, ditto::elementary::exp) * fresh_noise(request, x, step.index);
    });
  }
};

}  // namespace

DITTO_PLUGIN(Sampler, Ancestral, "ancestral", "1.0.0", "Apache-2.0",
             "DDPM's ancestral sampling, with the schedule's variance")
