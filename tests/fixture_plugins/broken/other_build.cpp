#include "broken.h"

BROKEN_STAMP("other_build", stamp.build_mode ^= ditto::kBuildDebug)
NEVER_CALLED
