#include "broken.h"

BROKEN_STAMP("other_sanitizer", stamp.build_mode ^= ditto::kBuildThreadSanitizer)
NEVER_CALLED
