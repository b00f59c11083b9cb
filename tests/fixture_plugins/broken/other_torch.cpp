#include "broken.h"

BROKEN_STAMP("other_torch", stamp.torch = ditto::fixed_text<16>("1.13.1"))
NEVER_CALLED
