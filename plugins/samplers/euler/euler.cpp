// The first-order solver of the probability flow.
//
// Data and noise mix as x = a x_0 + b eps, and the flow is dx = E[x_0 | x] da + E[eps | x] db along *any* path in the
// plane of (a, b): only b / a matters to the flow, and scaling is exact. So each step goes straight from (alpha_t,
// sigma_t) to (alpha_s, sigma_s), whatever the schedule does between its times. For rectified flow this is dx/dt =
// velocity; for EDM (alpha = 1) it is Euler in sigma (arXiv:2206.00364, alg. 1); and alpha = 0, where rectified flow
// starts, is no special case.
#include <ditto/sampler.h>

namespace {

class Euler : public ditto::Sampler {
 public:
  using Options = ditto::NoOptions;
  Euler(const Options&, const Needs&) {}

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      return go_straight(x, estimate(request, x, step.t), step.from, step.to);
    });
  }
};

}  // namespace

DITTO_PLUGIN(Sampler, Euler, "euler", "1.0.0", "Apache-2.0", "First-order solver of the probability flow")
