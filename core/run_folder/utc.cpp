#include "core/run_folder/utc.h"

#include <chrono>
#include <ctime>

#include <fmt/format.h>

namespace ditto::report {

std::string utc_text() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text, now.time_since_epoch().count() % 1000);
}

}  // namespace ditto::report
