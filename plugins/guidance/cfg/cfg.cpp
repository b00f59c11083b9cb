// Classifier-free guidance: J. Ho and T. Salimans, 2022 (arXiv:2207.12598); in an interval of noise levels:
// T. Kynkäänniemi et al., 2024 (arXiv:2404.07724); rescaled: S. Lin et al., 2023 (arXiv:2305.08891), section 3.4.
//
// Legend: c the prediction with conditions, u without, s the scale.
#include <ditto/ditto.h>

#include <limits>

namespace {

using torch::Tensor;

struct CfgOptions {
  double scale = 1, rescale = 0, from = 0, to = std::numeric_limits<double>::infinity();
  std::string form = "scale", channels = "all";

  void read(ditto::OptionReader& option) {
    option("scale", scale, "s in u + s (c - u): 1 is no guidance; with form = \"weight\", w: 0 is none").at_least(0.0);
    option("form", form, "how the scale is written: \"scale\": u + s (c - u); \"weight\": (1 + w) c - w u, s = 1 + w")
        .one_of({"scale", "weight"});
    option("channels", channels, "channels that are guided: \"3\" is what DiT's published samples used")
        .one_of({"all", "3"});
    option("from", from, "guided at noise levels sigma / alpha from this on …").at_least(0.0);
    option("to", to, "… up to this; elsewhere the prediction is c");
    option("rescale", rescale, "share of the result whose spread in each sample is brought back to that of c")
        .between(0, 1);
    option.only_if(scale != (form == "weight" ? 0 : 1), {"channels", "from", "to", "rescale"},
                   "is of guidance, and guidance.scale is none");
    if (!(to > from)) option.reject("to", "is not above guidance.from", "no noise level would be guided");
  }
};

struct Cfg final : ditto::Guidance {
  using Options = CfgOptions;
  Cfg(const Options& o, const Needs&) : options(o), scale(o.form == "weight" ? 1 + o.scale : o.scale) {}

  bool uses_negative() const override { return scale != 1; }

  Tensor predict(const ditto::GuidanceCall& call) const override {
    const double noise = call.level.sigma / call.level.alpha;
    if (scale == 1 || noise < options.from || noise > options.to) return call.evaluate({{}}).at(0);
    const auto both = call.evaluate({{}, {.with_conditions = false}});
    // The other channels, and a learned variance, are the conditional prediction's own.
    const int64_t channels = call.x_t.size(1),
                  guided = options.channels == "3" ? std::min<int64_t>(3, channels) : channels;
    auto result = both[0].clone();
    const auto c = both[0].narrow(1, 0, guided), u = both[1].narrow(1, 0, guided);
    auto combined = u + (c - u) * scale;
    if (options.rescale > 0)
      combined =
          combined * (options.rescale * spread_of(c) / spread_of(combined).clamp_min(1e-12) + 1 - options.rescale);
    result.narrow(1, 0, guided).copy_(combined);
    return result;
  }

 private:
  // The standard deviation of each sample's numbers, to multiply with.
  static Tensor spread_of(const Tensor& x) {
    auto shape = std::vector<int64_t>(static_cast<size_t>(x.dim()), 1);
    shape[0] = x.size(0);
    return x.flatten(1).std(1).view(shape);
  }

  Options options;
  double scale;
};

}  // namespace

DITTO_PLUGIN(Guidance, Cfg, "cfg", "1.0.0", "Apache-2.0", "classifier-free guidance")
