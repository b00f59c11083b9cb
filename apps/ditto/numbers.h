// Lists of whole numbers as people write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ditto {

// "0-9", "1,4,7", "0-3,10": in that order. Throws Error(config) naming `option`.
std::vector<int64_t> number_list(const std::string& text, const std::string& option);

}  // namespace ditto
