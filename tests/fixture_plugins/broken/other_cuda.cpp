#include "broken.h"

BROKEN_STAMP("other_cuda", stamp.cuda = ditto::fixed_text<16>("11.8"))
NEVER_CALLED
