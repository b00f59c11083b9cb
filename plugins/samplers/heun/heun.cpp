// The second-order solver of EDM (Karras et al., arXiv:2206.00364, alg. 1), for any schedule.
//
// dx = E[x_0 | x] da + E[eps | x] db along the straight line from (alpha_t, sigma_t) to (alpha_s, sigma_s), as in
// euler. The trapezoidal rule needs the model at both ends; the second evaluation is at the *new* point and time. The
// last step, to sigma = 0, is Euler's: N steps are 2 N - 1 evaluations.
#include <ditto/sampler.h>

namespace {

class Heun : public ditto::Sampler {
 public:
  using Options = ditto::NoOptions;
  Heun(const Options&, const Needs&) {}

  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step& step) {
      return go_by_both(request, x, step.t, step.s);
    });
  }
};

}  // namespace

DITTO_PLUGIN(Sampler, Heun, "heun", "1.0.0", "Apache-2.0", "Second-order solver of the probability flow (EDM)")
