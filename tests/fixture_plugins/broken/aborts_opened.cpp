#include <stdexcept>

#include "broken.h"

BROKEN_STAMP("aborts_opened", )
[[gnu::constructor]] static void opened() noexcept { throw std::runtime_error("no licence\n\x1b[2Jerror: found"); }
extern "C" DITTO_API const void* ditto_plugin_entry() { return nullptr; }
