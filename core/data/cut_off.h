// How much of pictures falls away where they are made square.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace ditto {

class CutOff {
 public:
  // Of `pictures` alike the share of their pixels that is left out; 0: they are square.
  void add(double share, std::int64_t pictures = 1) {
    all_ += pictures;
    if (share <= 0) return;
    cut_ += pictures;
    least_ = std::min(least_, share);
    most_ = std::max(most_, share);
  }
  // "30 of 40 pictures are not square: of each the middle is kept, and 25 % to 40 % are cut off (--size)"; empty: none
  // is cut.
  std::string sentence(const std::string& by) const {
    if (cut_ == 0) return {};
    return fmt::format("{}: of each the middle is kept, and {}{} cut off ({})", not_square(), percent(least_),
                       percent(most_) == percent(least_) ? " is" : " to " + percent(most_) + " are", by);
  }
  // Where that share is white beside the whole picture instead, or the picture is stretched until it is none.
  std::string padded(const std::string& by) const {
    if (cut_ == 0) return {};
    return fmt::format("{}: each is kept whole, and {} of its square is white ({})", not_square(),
                       range(percent(least_), percent(most_)), by);
  }
  std::string stretched(const std::string& by) const {
    if (cut_ == 0) return {};
    const auto factor = [](double share) {
      const double times = 1 / (1 - share);
      return times < 100 ? fmt::format("{:.3g}", times) : fmt::format("{:.0f}", times);
    };
    return fmt::format("{}: each is stretched along its shorter side, by {} ({})", not_square(),
                       range(factor(least_), factor(most_)), by);
  }

 private:
  std::string not_square() const {
    return fmt::format("{} of {} picture{} not square", cut_, all_, all_ == 1 ? " is" : cut_ == 1 ? "s is" : "s are");
  }
  // What is not all is never said to be 100 %.
  static std::string percent(double share) {
    const double all = 100 * share;
    return all < 99 ? fmt::format("{:.2g} %", all) : fmt::format("{:.4g} %", std::floor(100 * all) / 100);
  }
  static std::string range(const std::string& least, const std::string& most) {
    return least == most ? least : least + " to " + most;
  }

  std::int64_t all_ = 0, cut_ = 0;
  double least_ = 1, most_ = 0;
};

}  // namespace ditto
