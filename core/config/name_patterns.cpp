#include "core/config/name_patterns.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>

namespace ditto {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::string as_pattern(const std::string& name) {
  std::string text, part;
  for (const char c : name + ".") {
    if (c != '.') {
      part += c;
      continue;
    }
    const bool is_number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char d) { return std::isdigit(d); });
    text += (text.empty() ? "" : ".") + (is_number ? "*" : part);
    part.clear();
  }
  return text;
}

}  // namespace ditto
