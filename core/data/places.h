// Places in a run's global order of samples: those of a micro-batch, in the order in which its samples stand.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace ditto {

struct Places {
  Places() = default;
  explicit Places(std::vector<int64_t> places) : list(std::move(places)) {}
  Places(int64_t first, int64_t count) : list(static_cast<size_t>(count)) {  // [first, first + count)
    std::iota(list.begin(), list.end(), first);
  }
  int64_t count() const { return static_cast<int64_t>(list.size()); }
  bool operator==(const Places&) const = default;

  std::vector<int64_t> list;
};

}  // namespace ditto
