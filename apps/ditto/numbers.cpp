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
  constexpr int64_t kMost = 10'000'000;
  std::vector<int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const int64_t first = number(part.substr(0, dash), text, option);
    const int64_t last = dash == std::string::npos ? first : number(part.substr(dash + 1), text, option);
    if (last < first || last - first >= kMost) refuse(text, option);
    for (int64_t i = first; i <= last; ++i) numbers.push_back(i);
  }
  if (numbers.empty()) refuse(text, option);
  return numbers;
}

}  // namespace ditto
