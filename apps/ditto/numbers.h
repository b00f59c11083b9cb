// Lists of whole numbers as people write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ditto {

constexpr int64_t kMostNumbers = 1'000'000;

// "0-9", "1,4,7", "0-3,10": in that order, kMostNumbers at most. Throws Error(config) naming `option`.
std::vector<int64_t> number_list(const std::string& text, const std::string& option);

}  // namespace ditto
