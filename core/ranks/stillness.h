// How long something has not changed.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

namespace ditto {

// How long something has stood still. A watcher that was stopped itself has not seen that time pass.
class Stillness {
 public:
  explicit Stillness(std::chrono::milliseconds most) : most_(most) {}
  std::chrono::milliseconds of(const std::string& now) {
    const auto time = std::chrono::steady_clock::now();
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(time - last_);
    last_ = time;
    still_ = now == seen_ ? still_ + std::min(passed, most_) : std::chrono::milliseconds(0);
    seen_ = now;
    return still_;
  }

 private:
  std::chrono::milliseconds most_, still_{0};
  std::string seen_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace ditto
