#include "core/measure/processor_share.h"

#include <sys/resource.h>

#include <utility>

#include <fmt/format.h>

namespace ditto::report {

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string ProcessorShare::add(double had_s, double computed_s) {
  constexpr double kEnough = 0.7, kLeastSeconds = 10;
  constexpr int64_t kLeastSteps = 10;
  if (said_ || steps_++ < 0) return {};
  had_ += had_s;
  computed_ += computed_s;
  if (steps_ < kLeastSteps || computed_ < kLeastSeconds) return {};
  const double share = had_ / computed_;
  const auto steps = std::exchange(steps_, 0);
  had_ = computed_ = 0;
  low_ = share < kEnough ? low_ + 1 : 0;
  said_ = low_ == 2;
  if (!said_) return {};
  return fmt::format(
      "{} thread{} had {:.1f} of a processor (of {} steps): others keep this machine busy, or its limits allow no "
      "more, "
      "and steps take longer than they need to",
      threads_, threads_ == 1 ? "" : "s", share, steps);
}

}  // namespace ditto::report
