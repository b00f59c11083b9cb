#include "broken.h"

NEVER_CALLED
