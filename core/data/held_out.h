// What is held out is not learned from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/data.h>

namespace ditto {

// What two sources read, by Source::holds. A word that is a path, or one with "#" and a number behind it, is the file
// that it leads to, by whatever name.
struct InBoth {
  std::int64_t count = 0;
  std::string first, as;  // the first one, as the second source calls it, and as the first does
};
InBoth in_both(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Throws Error(config) where something is in both, and where both call the same number of a class otherwise.
void require_held_out(const Source& learned, const Source& held_out);

}  // namespace ditto
