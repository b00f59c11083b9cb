#if defined(__aarch64__)
#define DITTO_EXACT_NEON
#define DITTO_EXACT_NS neon
#define DITTO_EXACT_TABLE kNeon
#define DITTO_EXACT_VARIANT "exact_neon"
#define DITTO_EXACT_SCORE 20
#include "table.h"
#endif
