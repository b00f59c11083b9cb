#include "broken.h"

BROKEN_STAMP("entry_returns_nothing", )
extern "C" DITTO_API const void* ditto_plugin_entry() { return nullptr; }
