#include "broken.h"

BROKEN_STAMP("other_strings", stamp.cxx11_abi = !stamp.cxx11_abi)
NEVER_CALLED
