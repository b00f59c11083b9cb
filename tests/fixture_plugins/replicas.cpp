// Replicas that leave all sums to the host, and have an option of their own.
#include <ditto/parallel/strategy.h>

namespace {

struct Options {
  int64_t patience = 1;
  bool says_exact = false, says_remembers = false;
  void read(ditto::OptionReader& option) {
    option("patience", patience, "is of no use").at_least(1);
    option("says_exact", says_exact, "that its sums have the bits of one rank");
    option("says_remembers", says_remembers, "that it keeps numbers which no checkpoint has");
  }
};

class Replicas final : public ditto::ParallelStrategy {
 public:
  using Options = ::Options;
  Replicas(const Options& options, const Needs&) : options_(options) {}
  std::optional<ditto::Axis> axis() const override { return ditto::Axis::replicate; }
  bool exact() const override { return options_.says_exact; }
  bool remembers() const override { return options_.says_remembers; }

 private:
  Options options_;
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, Replicas, "replicas", "1.0.0", "Apache-2.0", "leaves all sums to the host")
