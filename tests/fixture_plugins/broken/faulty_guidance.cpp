// Classifier-free guidance that breaks one promise of the interface, as its option says.
#include <ditto/ditto.h>

namespace {

using torch::Tensor;

struct FaultyOptions {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

struct Faulty final : ditto::Guidance {
  using Options = FaultyOptions;
  Faulty(const Options& o, const Needs&) : fault(o.fault) {}

  bool uses_negative() const override { return fault != "unsaid negative"; }

  Tensor predict(const ditto::GuidanceCall& call) const override {
    if (fault == "no negative") return call.evaluate({{}}).at(0);
    const auto both = call.evaluate({{}, {.with_conditions = false}});
    auto result = both[1] + 2 * (both[0] - both[1]);
    if (fault == "forgets the variance") return result.narrow(1, 0, call.x_t.size(1));
    if (fault == "in double") return result.to(torch::kDouble);
    if (fault == "divides by zero") return result / (both[0] - both[0]);
    if (fault == "mixes samples") return result / result.std();
    if (fault == "random") return result + torch::randn_like(result);
    if (fault == "writes to its input") call.x_t.mul_(0.5);
    if (fault == "unsaid network") return result + 0 * call.evaluate({{.network = "other"}}).at(0);
    return result;
  }

  std::string fault;
};

}  // namespace

DITTO_PLUGIN(Guidance, Faulty, "faulty_guidance", "1.0.0", "Apache-2.0", "breaks one promise")
