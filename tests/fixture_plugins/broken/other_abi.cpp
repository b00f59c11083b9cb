#include "broken.h"

BROKEN_STAMP("other_abi", stamp.abi += 1)
NEVER_CALLED
