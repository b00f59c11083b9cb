// The trigonometric path (Albergo et al., 2023, arXiv:2303.08797; SiT's GVP): alpha = sin(pi t / 2), sigma = cos(pi t /
// 2).
#include <ditto/diffusion/interpolant.h>
#include <ditto/math/elementary.h>

namespace {

constexpr double kQuarter = 1.57079632679489661923;

struct GvpOptions : ditto::Interpolant::Options {
  void read(ditto::OptionReader& option) {
    ditto::Interpolant::Options::read(option);
    option.only_if(prediction != "velocity", {"train_eps", "sample_eps"},
                   "keeps away from ends that the prediction \"velocity\" does not have");
    if (prediction != "velocity" && (train_eps == 0 || sample_eps == 0))
      option.reject("prediction", "tells nothing of the data at t = 0, and train_eps or sample_eps is 0",
                    "set both to 1e-3, as SiT");
  }
};

struct Gvp final : ditto::Interpolant {
  using Options = GvpOptions;
  Gvp(const Options& o, const Needs&)
      : Interpolant("gvp", o, {.noise = o.prediction != "velocity", .data = o.prediction != "velocity"}) {}

  Point at(double t) const override {
    const auto [cos, sin] = ditto::elementary::cos_sin_of_turn(t / 4);
    return {sin, cos + 0.0, kQuarter * cos, -kQuarter * sin};  // + 0.0: at t = 1 no -0
  }
};

}  // namespace

DITTO_PLUGIN(Scheduler, Gvp, "gvp", "1.0.0", "Apache-2.0", "The trigonometric path, with SiT's conventions")
