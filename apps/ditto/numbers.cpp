#include "apps/ditto/numbers.h"

#include <charconv>
#include <sstream>

#include <ditto/error.h>

namespace ditto {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& option) {
  throw Error(ErrorKind::config, option + " " + text, "is not a list of whole numbers", "write it as 0-9 or 1,4,7");
}

// Other programs count to 2^64, and write -1 for "any".
[[noreturn]] void refuse_range(const std::string& text, const std::string& option) {
  throw Error(ErrorKind::config, option + " " + text,
              "is out of range: numbers are from 0 to " + std::to_string(INT64_MAX), "give one of these");
}

int64_t number(const std::string& text, const std::string& all, const std::string& option) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) refuse(all, option);
  if (code == std::errc::result_out_of_range || value < 0) refuse_range(text, option);
  if (code != std::errc()) refuse(all, option);
  return value;
}

}  // namespace

std::vector<int64_t> number_list(const std::string& text, const std::string& option) {
  std::vector<int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.starts_with('-') && part.size() > 1) number(part, text, option);  // refuses it by its range
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
