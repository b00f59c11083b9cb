#include "apps/ditto/numbers.h"

#include <charconv>
#include <sstream>

#include <ditto/error.h>

namespace ditto {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& option) {
  throw Error(ErrorKind::config, option + " " + text, "is not a list of whole numbers", "write it as 0-9 or 1,4,7");
}

int64_t number(const std::string& text, const std::string& all, const std::string& option) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) refuse(all, option);
  return value;
}

}  // namespace

std::vector<int64_t> number_list(const std::string& text, const std::string& option) {
  std::vector<int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const int64_t first = number(part.substr(0, dash), text, option);
    const int64_t last = dash == std::string::npos ? first : number(part.substr(dash + 1), text, option);
    if (last < first) refuse(text, option);
    const int64_t left = kMostNumbers - static_cast<int64_t>(numbers.size());
    if (last - first >= left)
      throw Error(ErrorKind::config, option, "names more than " + std::to_string(kMostNumbers) + " numbers",
                  "share them among several commands");
    for (int64_t i = 0; i <= last - first; ++i) numbers.push_back(first + i);
  }
  if (numbers.empty()) refuse(text, option);
  return numbers;
}

}  // namespace ditto
