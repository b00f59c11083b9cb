#include "broken.h"

BROKEN_STAMP("entry_throws_number", )
extern "C" DITTO_API const void* ditto_plugin_entry() { throw 42; }
