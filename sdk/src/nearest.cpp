// "Did you mean": without LibTorch, for parsers of foreign bytes as well.
#include <algorithm>
#include <numeric>
#include <utility>

#include <ditto/options.h>

namespace ditto {

namespace {

constexpr size_t kLongest = 200;  // letters; longer names are nobody's slip

// Single letters that are put in, left out or changed, and neighbours that change places.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j + 1] + 1, row[j] + 1, above[j] + (a[i] == b[j] ? 0 : 1)});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
    before = std::exchange(above, row);
  }
  return above[b.size()];
}

}  // namespace

// Of equals the first; none that differs in over a third of the letters, or two.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kLongest) return {};
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    if (candidate.size() + least <= name.size() || name.size() + least <= candidate.size()) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

}  // namespace ditto
