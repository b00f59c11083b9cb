#include "core/formats/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ditto::formats {

namespace {

std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view wanted, std::span<const std::string> names) {
  constexpr std::size_t kLongest = 200;
  if (wanted.empty() || wanted.size() > kLongest) return {};
  std::size_t best = (wanted.size() + 1) / 2 + 1;
  std::string result;
  for (const std::string& name : names) {
    if (name.size() > kLongest || name.size() + best < wanted.size() || wanted.size() + best < name.size()) continue;
    const std::size_t distance = edits(wanted, name);
    if (distance < best) {
      best = distance;
      result = name;
    }
  }
  return result;
}

}  // namespace ditto::formats
