// Any processor: vectors of four numbers as the compiler has them, and a fused multiply-add of our own.
#define DITTO_EXACT_NS plain
#define DITTO_EXACT_TABLE kPlain
#define DITTO_EXACT_VARIANT "exact_plain"
#define DITTO_EXACT_SCORE 10
#include "table.h"
