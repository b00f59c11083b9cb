// Guidance by a worse version of the model itself: T. Karras et al., 2024 (arXiv:2406.02507), eq. 4.
#include <ditto/ditto.h>

#include <limits>

namespace {

struct AutoguidanceOptions {
  std::string network = "guide";
  double scale = 2, from = 0, to = std::numeric_limits<double>::infinity();

  void read(ditto::OptionReader& option) {
    option("network", network, "the worse model, [network.NAME]: the same data, smaller or stopped earlier");
    option("scale", scale, "s in g + s (c - g) of the model's prediction c and the guide's g: 1 is no guidance")
        .at_least(0.0);
    option("from", from, "guided at noise levels sigma / alpha from this on …").at_least(0.0);
    option("to", to, "… up to this");
    if (!(to > from)) option.reject("to", "is not above guidance.from", "no noise level would be guided");
  }
};

struct Autoguidance final : ditto::Guidance {
  using Options = AutoguidanceOptions;
  Autoguidance(const Options& o, const Needs& needs) : options(o) { needs.require_network(o.network); }

  torch::Tensor predict(const ditto::GuidanceCall& call) const override {
    const double noise = call.level.sigma / call.level.alpha;
    if (options.scale == 1 || noise < options.from || noise > options.to) return call.evaluate({{}}).at(0);
    const auto both = call.evaluate({{}, {.network = options.network}});
    // A learned variance is the model's own.
    const int64_t channels = call.x_t.size(1);
    auto result = both[0].clone();
    const auto c = both[0].narrow(1, 0, channels), g = both[1].narrow(1, 0, channels);
    result.narrow(1, 0, channels).copy_(g + (c - g) * options.scale);
    return result;
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Guidance, Autoguidance, "autoguidance", "1.0.0", "Apache-2.0", "guidance by a worse version of the model")
