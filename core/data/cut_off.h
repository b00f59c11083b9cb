// How much of pictures falls away where they are made square.
#pragma once

#include <algorithm>
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
    const auto percent = [](double share) { return fmt::format("{:.2g} %", 100 * share); };
    return fmt::format("{} of {} pictures are not square: of each the middle is kept, and {}{} cut off ({})", cut_,
                       all_, percent(least_),
                       percent(most_) == percent(least_) ? " is" : " to " + percent(most_) + " are", by);
  }

 private:
  std::int64_t all_ = 0, cut_ = 0;
  double least_ = 1, most_ = 0;
};

}  // namespace ditto
