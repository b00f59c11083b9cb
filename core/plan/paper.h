// What is put together on shapes alone.
#pragma once

#include <cstdint>

#include "core/assembly/assembly.h"

namespace ditto {

// The recipe of a run that computes nothing.
Recipe on_paper(Recipe recipe);

struct LargestSize {
  SampleSize sides;    // of every sample; empty: all have one size
  int64_t tokens = 0;  // of it; 0: all have one size
};
// Of the sizes that the recipe learns from, where samples have their own. Throws Error(config) where it names none.
LargestSize largest_size(Assembly& assembly);

}  // namespace ditto
