#include "broken.h"

BROKEN_STAMP("no_entry", )
