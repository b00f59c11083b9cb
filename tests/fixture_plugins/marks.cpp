// Right, but for a byte that it adds to the file DITTO_MARK whenever it is opened: tests count them.
#include <cstdlib>
#include <fstream>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

[[gnu::constructor]] void opened() {
  if (const char* path = std::getenv("DITTO_MARK")) std::ofstream(path, std::ios::app) << 'x';
}

struct Marks : ditto::KernelSet {
  using Options = ditto::NoOptions;
  Marks(const Options&, const Needs&) {}
  std::vector<ditto::KernelRow> rows() const override { return {}; }
};

}  // namespace

DITTO_PLUGIN(KernelSet, Marks, "marks", "1.0.0", "Apache-2.0", "leaves a mark when it is opened")
