#include <csignal>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

struct Declares : ditto::KernelSet {
  struct Options {
    void read(ditto::OptionReader&) { std::raise(SIGSEGV); }
  };
  Declares(const Options&, const Needs&) {}
  std::vector<ditto::KernelRow> rows() const override { return {}; }
};

}  // namespace

DITTO_PLUGIN(KernelSet, Declares, "crashes_declaring", "1.0.0", "Apache-2.0", "wrong on purpose")
