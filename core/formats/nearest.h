// "Did you mean": the closest of some names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ditto::formats {

// The name with the fewest single-letter edits from `wanted`, or "" if none is closer than half of its letters (or if
// `wanted` is over 200 letters). Of equals, the first.
std::string nearest_name(std::string_view wanted, std::span<const std::string> names);

}  // namespace ditto::formats
