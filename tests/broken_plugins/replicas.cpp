// Replicas that leave all sums to the host, and have an option of their own.
#include <ditto/parallel/strategy.h>

namespace {

struct Options {
  int64_t patience = 1;
  void read(ditto::OptionReader& option) { option("patience", patience, "is of no use").at_least(1); }
};

class Replicas final : public ditto::ParallelStrategy {
 public:
  using Options = ::Options;
  Replicas(const Options&, const Needs&) {}
  std::optional<ditto::Axis> axis() const override { return ditto::Axis::replicate; }
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, Replicas, "replicas", "1.0.0", "Apache-2.0", "leaves all sums to the host")
