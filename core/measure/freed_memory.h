// What becomes of memory that is freed.
#pragma once

#include <malloc.h>

namespace ditto::report {

// Gives it back to the system from now on: every larger piece of memory lies apart. While a run starts, pieces of all
// sizes come and go, among which the heap would grow by a tenth of holes.
inline void give_back_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 16 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
#endif
}

// Keeps it in the process from now on: what a step frees the next one asks for again, and given back to the system it
// would come back page by page, cleared. Called by what reads batches, when it
// reads the first, and by what samples.
inline void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // as far as it goes
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // namespace ditto::report
