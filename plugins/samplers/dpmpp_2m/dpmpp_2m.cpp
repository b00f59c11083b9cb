// DPM-Solver++(2M) (Lu et al., 2022, arXiv:2211.01095, alg. 2), for any schedule: the exact solution of the flow in log
// SNR for an estimate of the data that is linear there, drawn through this step's and the last one's. The first step,
// and the one to sigma = 0, take it as constant.
#include <ditto/sampler.h>

namespace {

struct Dpmpp2m final : ditto::Sampler {
  using Options = ditto::NoOptions;
  Dpmpp2m(const Options&, const Needs&) {}

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    torch::Tensor last;
    double last_h = 0;
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      const auto &from = step.from, &to = step.to;
      const double h = log_ratio(to) - log_ratio(from), kept = to.sigma / from.sigma;
      const auto clean = estimate(request, x, step.t).clean;
      auto drawn = clean;
      if (last.defined() && to.sigma > 0) drawn = clean + h / (2 * last_h) * (clean - last);
      last = clean;
      last_h = h;
      return kept * x + (to.alpha - kept * from.alpha) * drawn;
    });
  }
};

}  // namespace

DITTO_PLUGIN(Sampler, Dpmpp2m, "dpmpp_2m", "1.0.0", "Apache-2.0",
             "DPM-Solver++(2M): second order, one evaluation a step")
