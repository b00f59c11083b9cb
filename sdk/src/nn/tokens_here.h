// Which tokens of a pack are here.
#pragma once

#include <algorithm>
#include <vector>

#include <ditto/stream.h>

namespace ditto {

// Of each sample of the pack, how many of its tokens are among the `here` ones: all, or those of a slice.
inline std::vector<int64_t> tokens_here(const Sequence& tokens, int64_t here) {
  const int64_t first = here == tokens.tokens() ? 0 : tokens.first_token;
  std::vector<int64_t> counts;
  int64_t start = 0;
  for (const int64_t length : tokens.packing->lengths) {
    const int64_t begin = std::max(start, first), end = std::min(start + length, first + here);
    counts.push_back(std::max<int64_t>(end - begin, 0));
    start += length;
  }
  return counts;
}

}  // namespace ditto
