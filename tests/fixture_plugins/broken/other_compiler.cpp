#include "broken.h"

BROKEN_STAMP("other_compiler", stamp.compiler_abi += 1)
NEVER_CALLED
