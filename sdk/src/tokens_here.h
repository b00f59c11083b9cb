// Which tokens of a pack a call of attention has here.
#pragma once

#include <algorithm>
#include <vector>

#include <ditto/attention.h>

namespace ditto {

// Of each sample of the part's pack, how many of its queries are here: all, or those of a slice.
inline std::vector<int64_t> tokens_here(const AttentionPart& part) {
  const int64_t here = part.q.size(1), first = here == part.tokens.tokens() ? 0 : part.tokens.first_token;
  std::vector<int64_t> counts;
  int64_t start = 0;
  for (const int64_t length : part.tokens.packing->lengths) {
    const int64_t begin = std::max(start, first), end = std::min(start + length, first + here);
    counts.push_back(std::max<int64_t>(end - begin, 0));
    start += length;
  }
  return counts;
}

}  // namespace ditto
