// "Did you mean": without LibTorch, for parsers of foreign bytes as well.
#include <algorithm>
#include <numeric>

#include <ditto/options.h>

namespace ditto {

namespace {

constexpr size_t kLongest = 200;  // letters; longer names are nobody's slip

// Single letters that are put in, left out or changed.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
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
