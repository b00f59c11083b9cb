#include <csignal>

#include "broken.h"

BROKEN_STAMP("crashes_opened", )
[[gnu::constructor]] static void opened() { std::raise(SIGSEGV); }
extern "C" DITTO_API const void* ditto_plugin_entry() { return nullptr; }
