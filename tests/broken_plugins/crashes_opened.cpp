#include "broken.h"

BROKEN_STAMP("crashes_opened", )
[[gnu::constructor]] static void opened() { *static_cast<volatile int*>(nullptr) = 1; }
extern "C" DITTO_API const void* ditto_plugin_entry() { return nullptr; }
