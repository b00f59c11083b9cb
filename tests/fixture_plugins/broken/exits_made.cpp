#include <cstdlib>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

struct Made : ditto::KernelSet {
  using Options = ditto::NoOptions;
  Made(const Options&, const Needs&) { std::exit(0); }
  std::vector<ditto::KernelRow> rows() const override { return {}; }
};

}  // namespace

DITTO_PLUGIN(KernelSet, Made, "exits_made", "1.0.0", "Apache-2.0", "wrong on purpose")
