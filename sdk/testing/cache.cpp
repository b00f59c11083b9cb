// The promises of a cache: on changes that it is told.
#include <cmath>
#include <limits>

#include <ditto/testing/checks.h>

namespace ditto::testing {

namespace {

class CacheTest {
 public:
  CacheTest(const std::string& path, const OptionValues& options) : path_(path), options_(options) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return made_ = make<Cache>(path_, options_), std::string(); });
    if (!made_) return;
    report.check("all that it remembers of a sample is its sum", [&] { return remembered(); });
    report.check("a change that is not finite is computed", [&] { return not_finite(); });
    report.check("the sum stays finite", [&] { return finite_sums(); });
  }

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity(),
                          kNan = std::numeric_limits<double>::quiet_NaN();

  // Of one sample: small changes, large ones, and the last.
  static std::vector<double> changes() {
    std::vector<double> all{0};
    for (int i = 0; i < 40; ++i) all.push_back(0.37 * i - static_cast<int>(0.37 * i) + (i % 7 == 0 ? 2 : 0));
    return all;
  }
  bool next(size_t i, double& sum) const {
    const auto all = changes();
    return made_->computes({all[i], i + 1 == all.size(), sum});
  }

  std::string remembered() const {
    std::vector<bool> alone, together;
    double sum = 0, first = 0, second = 0;
    for (size_t i = 0; i < changes().size(); ++i) alone.push_back(next(i, sum));
    for (size_t i = 0; i < changes().size(); ++i) {
      together.push_back(next(i, first));
      if (next(i, second) != alone[i]) return "a sample whose turn it is second is decided otherwise than alone";
    }
    return together == alone ? "" : "it decides otherwise of a sample in company than alone";
  }

  std::string not_finite() const {
    for (const double change : {kInf, kNan}) {
      double sum = 0;
      if (!made_->computes({change, false, sum})) return "one of " + std::to_string(change) + " is skipped";
    }
    return {};
  }

  std::string finite_sums() const {
    double sum = 0;
    for (const double change : {0.1, kInf, 0.1, kNan, 0.1}) {
      made_->computes({change, false, sum});
      if (!std::isfinite(sum)) return "after a change of " + std::to_string(change) + " it is not";
    }
    return {};
  }

  std::string path_;
  OptionValues options_;
  std::shared_ptr<Cache> made_;
};

}  // namespace

Report check_cache(const std::string& path, const OptionValues& options) {
  Report report("cache " + path);
  report.guard([&] { CacheTest(path, options).run(report); });
  return report;
}

}  // namespace ditto::testing
