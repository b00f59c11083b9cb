#include "broken.h"

BROKEN_STAMP("other_kind", stamp.kind = ditto::fixed_text<16>("tokenizer"))
NEVER_CALLED
