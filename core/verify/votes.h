// Who was wrong, where a micro-batch was computed several times and not all came to the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/verify/prints.h"

namespace ditto {

// A micro-batch computed once: by the ranks of one data index, each with its part of the model.
struct Computed {
  int by = 0;                           // data rank
  std::map<std::string, int> ranks;     // by their place in the model: the world's ranks
  std::map<std::string, Prints> parts;  // what each has made
};

struct Verdict {
  int64_t right = -1;  // which of the runs is: the first of them; -1: nobody can tell
  std::string text;    // "rank 1 made other numbers than ranks 0 and 2 agree on, first in the forward of block 3: x"
};

// What two different data ranks came to is right, where no two others came to something else; of one data rank alone
// (`peers` is 1), what it came to twice. `runs`: the first is the one that the step learned from.
Verdict judge(const std::vector<Computed>& runs, int peers);

}  // namespace ditto
