// A cache that breaks one promise of the interface, as its option says.
#include <ditto/ditto.h>

namespace {

struct FaultyOptions {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

struct Faulty final : ditto::Cache {
  using Options = FaultyOptions;
  Faulty(const Options& o, const Needs&) : fault(o.fault) {}

  Signal signal() const override { return Signal::first_residual; }
  Against against() const override { return Against::last; }

  bool computes(const Evaluation& evaluation) const override {
    if (fault == "remembers another's") return (all += evaluation.change) > 1 ? all = 0, true : false;
    if (fault == "skips what is not a number") return evaluation.change > 0.5;
    evaluation.sum += evaluation.change;
    const bool computes = !(evaluation.sum < 1);
    if (computes && fault != "sums on") evaluation.sum = 0;
    return computes;
  }

  std::string fault;
  mutable double all = 0;
};

}  // namespace

DITTO_PLUGIN(Cache, Faulty, "faulty_cache", "1.0.0", "Apache-2.0", "breaks one promise")
