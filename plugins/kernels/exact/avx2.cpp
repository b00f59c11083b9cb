#if defined(__x86_64__)
#define DITTO_EXACT_AVX2
#define DITTO_EXACT_NS avx2
#define DITTO_EXACT_TABLE kAvx2
#define DITTO_EXACT_VARIANT "exact_avx2"
#define DITTO_EXACT_SCORE 20
#include "table.h"
#endif
