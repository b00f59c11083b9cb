#include <cstdlib>

#include "broken.h"

BROKEN_STAMP("exits_opened", )
extern "C" DITTO_API const void* ditto_plugin_entry() { std::exit(0); }
