// Names of layers and parameters, and the patterns by which a recipe picks some.
#pragma once

#include <string>

namespace ditto {

// As a shell's: *, ? and [a-z]; a star spans dots.
bool matches(const std::string& pattern, const std::string& name);
// "blocks.3.qkv" as "blocks.*.qkv": names that differ in numbers alone are one.
std::string as_pattern(const std::string& name);

}  // namespace ditto
