#include "broken.h"

void nowhere_defined();

BROKEN_STAMP("unresolved", )
extern "C" DITTO_API const void* ditto_plugin_entry() {
  nowhere_defined();
  return nullptr;
}
