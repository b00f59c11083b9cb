#include <unistd.h>

#include "broken.h"

BROKEN_STAMP("loops_opened", )
[[gnu::constructor]] static void opened() {
  while (true) ::pause();
}
extern "C" DITTO_API const void* ditto_plugin_entry() { return nullptr; }
