#include <stdexcept>

#include "broken.h"

BROKEN_STAMP("entry_throws", )
extern "C" DITTO_API const void* ditto_plugin_entry() { throw std::runtime_error("the licence server is asleep"); }
