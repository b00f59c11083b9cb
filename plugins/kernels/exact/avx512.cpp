#if defined(__x86_64__)
#define DITTO_EXACT_AVX512
#define DITTO_EXACT_NS avx512
#define DITTO_EXACT_TABLE kAvx512
#define DITTO_EXACT_VARIANT "exact_avx512"
#define DITTO_EXACT_SCORE 30
#include "table.h"
#endif
