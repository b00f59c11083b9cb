#include "core/measure/shown_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define DITTO_HAS_NVTX 1
#endif

namespace ditto {

#ifdef DITTO_HAS_NVTX
ShownRange::ShownRange(const std::string& name) : id_(nvtxRangeStartA(name.c_str())) {}
ShownRange::~ShownRange() { nvtxRangeEnd(id_); }
bool ShownRange::is_built() { return true; }
#else
ShownRange::ShownRange(const std::string&) {}
ShownRange::~ShownRange() = default;
bool ShownRange::is_built() { return false; }
#endif

}  // namespace ditto
