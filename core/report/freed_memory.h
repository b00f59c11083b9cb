// What becomes of memory that is freed.
#pragma once

#include <malloc.h>

namespace ditto::report {

// Keeps it in the process from now on: what a step frees the next one asks for again, and given back to the system it
// would come back page by page, cleared. Called by what reads batches and by what samples.
inline void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // as far as it goes
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // namespace ditto::report
