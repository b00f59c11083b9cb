// TeaCache: F. Liu et al., "Timestep embedding tells: it's time to cache for video diffusion model", 2024
// (arXiv:2411.19108), as its authors' program for Flux has it (ali-vilab/TeaCache, TeaCache4FLUX/teacache_flux.py).
#include <ditto/cache.h>
#include <ditto/plugin.h>

namespace {

struct TeaCacheOptions {
  double threshold = 0.25;
  std::vector<double> coefficients{498.651651, -283.781631, 55.8554382, -3.82021401, 0.264230861};

  void read(ditto::OptionReader& option) {
    option("threshold", threshold, "sum of rescaled changes from which on the blocks are computed").above(0.0);
    option(
        "coefficients", coefficients,
        "of the polynomial that rescales a change of the modulated input to one of the model's answer, highest power "
        "first: fitted to a model; the default's are Flux.1-dev's");
    if (coefficients.empty())
      option.reject("coefficients", "is empty", "give the model's polynomial; [1, 0] takes the change as it is");
  }
};

struct TeaCache final : ditto::Cache {
  using Options = TeaCacheOptions;
  TeaCache(const Options& o, const Needs&) : options(o) {}

  Signal signal() const override { return Signal::modulated_input; }
  Against against() const override { return Against::last; }

  bool computes(const Evaluation& evaluation) const override {
    double rescaled = 0;
    for (const double c : options.coefficients) rescaled = rescaled * evaluation.change + c;
    evaluation.sum += rescaled;
    const bool computes = evaluation.is_last || !(evaluation.sum < options.threshold);
    if (computes) evaluation.sum = 0;
    return computes;
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Cache, TeaCache, "teacache", "1.0.0", "Apache-2.0",
             "skips all blocks while the modulated input has changed little (TeaCache)")
