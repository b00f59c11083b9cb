#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

struct NoKernels : ditto::KernelSet {
  struct Options {
    double speed = 1.5;
    void read(ditto::OptionReader& option) { option("speed", speed, "how fast it does nothing").between(0.0, 9.0); }
  };
  NoKernels(const Options&, const Needs&) {}
  std::vector<ditto::KernelRow> rows() const override { return {}; }
};

}  // namespace

DITTO_PLUGIN(KernelSet, NoKernels, "good", "1.2.3", "MIT", "a plugin with nothing wrong")
