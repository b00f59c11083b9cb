// First-block caching, as diffusers has it (hooks/first_block_cache.py), after ParaAttention.
#include <ditto/cache.h>
#include <ditto/plugin.h>

namespace {

struct FirstBlockOptions {
  double threshold = 0.05;

  void read(ditto::OptionReader& option) {
    option("threshold", threshold,
           "relative change of what the first block adds, since the last evaluation that was computed, up to which the "
           "others are skipped")
        .at_least(0.0);
  }
};

struct FirstBlock final : ditto::Cache {
  using Options = FirstBlockOptions;
  FirstBlock(const Options& o, const Needs&) : options(o) {}

  Signal signal() const override { return Signal::first_residual; }
  Against against() const override { return Against::last_computed; }
  bool computes(const Evaluation& evaluation) const override { return !(evaluation.change <= options.threshold); }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Cache, FirstBlock, "first_block", "1.0.0", "Apache-2.0",
             "skips the other blocks where the first one adds what it added before")
