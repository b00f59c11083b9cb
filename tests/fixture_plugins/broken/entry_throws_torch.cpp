#include <c10/util/Exception.h>

#include "broken.h"

BROKEN_STAMP("entry_throws_torch", )
extern "C" DITTO_API const void* ditto_plugin_entry() {
  TORCH_CHECK(false, "width 5 is odd");
  return nullptr;
}
